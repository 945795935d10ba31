//! Unserved-routes job: finds routes with messages and without a running relay.
//!
//! Their own relays would report them, but there are none. So every relay looks.

use std::sync::Arc;
use std::time::Duration;

use crate::relay::context::{Context, in_time};

/// Interval of the query. It is long, because the store may have to read many rows; an operator
/// still hears soon of a mistyped route. The first query runs one interval after the start, when
/// relays that start together have registered.
pub(crate) const EVERY: Duration = Duration::from_secs(60);

/// Age of a message from which its route is reported.
const AFTER: Duration = Duration::from_secs(60);

/// Looks for them. The first of this relay's routes keeps the findings, and its configuration
/// applies.
pub(super) async fn round(routes: &[Arc<Context>]) {
    let Some(first) = routes.first() else { return };
    match in_time(first.config.store_timeout, "unserved", first.store.unserved(AFTER)).await {
        Ok(mut found) => {
            // The relay's own routes are not unserved. If their registration expired, the health
            // check reports the lost leases.
            found.retain(|unserved| routes.iter().all(|own| own.route != unserved.route));
            first.unserved.found(first.now(), found);
        }
        Err(error) => {
            tracing::warn!(%error, "check for unserved routes failed; will retry");
            first.unserved.failed(first.now(), error.to_string());
        }
    }
}
