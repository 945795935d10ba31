//! The lookout: routes with messages that no relay serves. Their own relays would tell of them, and there are none: so every relay looks.
//!
//! Apart from the meter: whatever comes of this, the backlog is measured meanwhile.

use std::sync::Arc;
use std::time::Duration;

use ractor::{ActorProcessingErr, ActorRef};

use super::context::{Context, in_time};

/// How often the store is asked. It may have to look at many rows, and a newcomer who mistyped a route still hears of it soon. The first time is as
/// long after the start: relays that start together are there by then.
pub(super) const EVERY: Duration = Duration::from_secs(60);

/// For how long a message has waited before its route is told of.
const AFTER: Duration = Duration::from_secs(60);

pub(crate) struct Lookout {
    /// The routes of this relay; what is found stands with the first one, and its configuration counts.
    pub(crate) routes: Vec<Arc<Context>>,
}

/// Look.
pub(crate) struct Look;

#[ractor::actor(message = Look, state = ())]
impl Lookout {
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

impl Lookout {
    async fn look(&self) {
        let Some(first) = self.routes.first() else { return };
        match in_time(first.config.store_timeout, "unserved", first.store.unserved(AFTER)).await {
            Ok(mut found) => {
                // A relay whose own life has run out says so in other words.
                found.retain(|unserved| self.routes.iter().all(|own| own.route != unserved.route));
                first.unserved.found(first.now(), found);
            }
            Err(error) => {
                tracing::warn!(%error, "whether every route has a relay could not be found out");
                first.unserved.failed(first.now(), error.to_string());
            }
        }
    }
}
