//! All that the pages share.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox::relay::RelayObserver;
use outbox::{Route, Store};

use crate::access::{Gate, MacKey, Role};
use crate::builder::{DashboardBuilder, Redact};
use crate::problem::{Problem, limited};
use crate::series::Series;

/// Maximum number of routes that a page or a sample asks for.
pub(crate) const MAX_ROUTES: usize = 32;

/// A dashboard.
pub(crate) struct App {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) relay: Option<RelayObserver>,
    pub(crate) gate: Gate,
    pub(crate) key: MacKey,
    pub(crate) payloads_for: Role,
    pub(crate) title: String,
    pub(crate) base: Option<String>,
    pub(crate) hosts: Vec<String>,
    pub(crate) origins: Vec<String>,
    pub(crate) settings: Vec<(String, String)>,
    pub(crate) store_timeout: Duration,
    pub(crate) sample_every: Duration,
    pub(crate) is_sampling: AtomicBool,
    routes: Vec<Route>,
    series: Mutex<Series>,
    redact: Redact,
}

impl App {
    /// Takes the settings.
    pub(crate) fn new(builder: DashboardBuilder, gate: Gate, key: MacKey) -> Self {
        Self {
            store: builder.store,
            relay: builder.relay,
            gate,
            key,
            payloads_for: builder.payloads_for,
            title: builder.title,
            base: builder.base,
            hosts: builder.hosts,
            origins: builder.origins,
            settings: builder.settings,
            store_timeout: builder.store_timeout,
            sample_every: builder.sample_every,
            is_sampling: AtomicBool::new(false),
            routes: builder.routes,
            series: Mutex::new(Series::new(builder.sample_every)),
            redact: builder.redact,
        }
    }

    /// Returns the samples of the charts.
    pub(crate) fn series(&self) -> MutexGuard<'_, Series> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a text without secrets.
    pub(crate) fn redacted(&self, text: &str) -> String {
        (self.redact)(text)
    }

    /// Returns the routes to show: the default one, those of the settings and of the relay, and
    /// those that the store finds.
    pub(crate) async fn routes(&self) -> Result<Vec<Route>, Problem> {
        let mut routes = BTreeSet::from([Route::default()]);
        routes.extend(self.routes.iter().cloned());
        let of_relay = self.relay.iter().flat_map(RelayObserver::backlog).map(|(route, _)| route);
        routes.extend(of_relay);
        let found = limited(self.store_timeout, self.store.routes()).await?;
        routes.extend(found.into_iter().map(|status| status.route));
        // The default route first, then by name.
        let mut routes: Vec<Route> = routes.into_iter().collect();
        routes.sort_by_key(|route| *route != Route::default());
        routes.truncate(MAX_ROUTES);
        Ok(routes)
    }
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App")
            .field("store", &self.store.name())
            .field("gate", &self.gate)
            .finish_non_exhaustive()
    }
}
