//! All that the pages share.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox::admin::{RouteStatus, TopicFigures};
use outbox::relay::{Backlog, RelayObserver};
use outbox::{Route, Store, StoreError};
use tokio::time::Instant;

use crate::access::{Gate, MacKey, Role};
use crate::builder::{DashboardBuilder, Redact};
use crate::measured::Measured;
use crate::problem::{Problem, limited};
use crate::series::Series;

/// Maximum number of routes that a page shows, or a sample asks for.
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
    backlogs: Mutex<Measured<Backlog>>,
    topics: Mutex<Measured<Vec<TopicFigures>>>,
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
            backlogs: Mutex::default(),
            topics: Mutex::default(),
            redact: builder.redact,
        }
    }

    /// Returns the samples of the charts.
    pub(crate) fn series(&self) -> MutexGuard<'_, Series> {
        lock(&self.series)
    }

    /// Returns the backlog of a route, which may be a few seconds old where it takes long to
    /// measure.
    pub(crate) async fn backlog(&self, route: &Route) -> Result<Backlog, Problem> {
        self.counted(&self.backlogs, route, self.store.backlog(route)).await
    }

    /// Returns the figures of the topics of a route, which may be as old.
    pub(crate) async fn topics(&self, route: &Route) -> Result<Vec<TopicFigures>, Problem> {
        self.counted(&self.topics, route, self.store.topics(route)).await
    }

    async fn counted<T: Clone>(
        &self,
        last: &Mutex<Measured<T>>,
        route: &Route,
        count: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Problem> {
        let began = Instant::now();
        if let Some(figures) = lock(last).get(route, began) {
            return Ok(figures);
        }
        let figures = limited(self.store_timeout, count).await?;
        lock(last).put(route.clone(), began, Instant::now(), figures.clone());
        Ok(figures)
    }

    /// Has all figures counted again: an operation has changed something.
    pub(crate) fn changed(&self) {
        let now = Instant::now();
        lock(&self.backlogs).clear(now);
        lock(&self.topics).clear(now);
    }

    /// Returns a text without secrets.
    pub(crate) fn redacted(&self, text: &str) -> String {
        (self.redact)(text)
    }

    /// Returns the routes, of which a page shows the first [`MAX_ROUTES`]: the default one, those of
    /// the settings and of the relay, and those that the store finds.
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
        Ok(routes)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App")
            .field("store", &self.store.name())
            .field("gate", &self.gate)
            .finish_non_exhaustive()
    }
}
