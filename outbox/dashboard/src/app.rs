//! All that the pages share.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outbox::admin::RouteStatus;
use outbox::backend::Backlog;
use outbox::relay::RelayObserver;
use outbox::{Route, Store};

use crate::access::{Gate, MacKey, Role};
use crate::builder::{DashboardBuilder, Redact};
use crate::measured::Measured;
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
    measured: Mutex<Measured>,
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
            measured: Mutex::default(),
            redact: builder.redact,
        }
    }

    /// Returns the samples of the charts.
    pub(crate) fn series(&self) -> MutexGuard<'_, Series> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the backlogs of a moment ago.
    pub(crate) fn measured(&self) -> MutexGuard<'_, Measured> {
        self.measured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the backlog of a route, which may be a few seconds old where it takes long to
    /// measure.
    pub(crate) async fn backlog(&self, route: &Route) -> Result<Backlog, Problem> {
        let began = Instant::now();
        if let Some(backlog) = self.measured().get(route, began) {
            return Ok(backlog);
        }
        let backlog = limited(self.store_timeout, self.store.backlog(route)).await?;
        self.measured().put(route.clone(), began, Instant::now(), backlog.clone());
        Ok(backlog)
    }

    /// Returns a text without secrets.
    pub(crate) fn redacted(&self, text: &str) -> String {
        (self.redact)(text)
    }

    /// Returns the routes to show: the default one, those of the settings and of the relay, and
    /// those that the store finds.
    pub(crate) async fn routes(&self) -> Result<Vec<RouteStatus>, Problem> {
        let found = limited(self.store_timeout, self.store.routes()).await?;
        let mut routes: BTreeMap<Route, RouteStatus> =
            found.into_iter().map(|status| (status.route.clone(), status)).collect();
        let of_relay = self.relay.iter().flat_map(RelayObserver::backlog).map(|(route, _)| route);
        for route in self.routes.iter().cloned().chain(of_relay).chain([Route::default()]) {
            routes.entry(route.clone()).or_insert_with(|| RouteStatus::new(route));
        }
        // The default route first, then by name.
        let mut routes: Vec<RouteStatus> = routes.into_values().collect();
        routes.sort_by_key(|status| status.route != Route::default());
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
