//! Settings job: checks the transports of a relay again, as at its start.

use std::sync::Arc;

use futures_util::future::join_all;
use ractor::{ActorProcessingErr, ActorRef};

use crate::relay::context::Context;
use crate::transport_check::EVERY;

/// Job that checks transports.
pub(crate) struct SettingsJob {
    /// Routes of this relay.
    pub(crate) routes: Vec<Arc<Context>>,
}

/// Message: check now.
pub(crate) struct Check;

#[ractor::actor(message = Check, state = ())]
impl SettingsJob {
    async fn pre_start(&self, _myself: ActorRef<Check>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn post_start(&self, myself: ActorRef<Check>, _state: &mut ()) -> Result<(), ActorProcessingErr> {
        // The start has just done it.
        myself.send_after(EVERY, || Check);
        Ok(())
    }

    async fn handle(
        &self,
        myself: ActorRef<Check>,
        Check: Check,
        _state: &mut (),
    ) -> Result<(), ActorProcessingErr> {
        let look = |context: &Arc<Context>| {
            let context = Arc::clone(context);
            async move { context.check_transport().await }
        };
        join_all(self.routes.iter().map(look)).await;
        myself.send_after(EVERY, || Check);
        Ok(())
    }
}
