//! Finds routes with messages and without a running relay.
//!
//! Their own relays would report them, and there are none: so every relay looks.

use std::sync::Arc;
use std::time::Duration;

use ractor::{ActorProcessingErr, ActorRef};

use crate::relay::context::{Context, in_time};

/// Interval of the question. The store may have to look at many rows, and somebody who mistyped a
/// route still hears of it soon. The first time is one interval after the start: relays that start
/// together have announced themselves by then.
pub(crate) const EVERY: Duration = Duration::from_secs(60);

/// Age of a message from which its route is reported.
const AFTER: Duration = Duration::from_secs(60);

/// The job that looks for unserved routes.
pub(crate) struct UnservedJob {
    /// The routes of this relay; findings are kept with the first one, whose configuration applies.
    pub(crate) routes: Vec<Arc<Context>>,
}

/// Asks the store.
pub(crate) struct Look;

#[ractor::actor(message = Look, state = ())]
impl UnservedJob {
    async fn pre_start(&self, _myself: ActorRef<Look>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn post_start(&self, myself: ActorRef<Look>, _state: &mut ()) -> Result<(), ActorProcessingErr> {
        myself.send_after(EVERY, || Look);
        Ok(())
    }

    async fn handle(
        &self,
        myself: ActorRef<Look>,
        Look: Look,
        _state: &mut (),
    ) -> Result<(), ActorProcessingErr> {
        self.look().await;
        myself.send_after(EVERY, || Look);
        Ok(())
    }
}

impl UnservedJob {
    async fn look(&self) {
        let Some(first) = self.routes.first() else { return };
        match in_time(first.config.store_timeout, "unserved", first.store.unserved(AFTER)).await {
            Ok(mut found) => {
                // A relay whose own life has run out says so in other words.
                found.retain(|unserved| self.routes.iter().all(|own| own.route != unserved.route));
                first.unserved.found(first.now(), found);
            }
            Err(error) => {
                tracing::warn!(%error, "could not look for routes without a running relay");
                first.unserved.failed(first.now(), error.to_string());
            }
        }
    }
}
