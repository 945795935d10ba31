//! The dashboard, and its settings.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use outbox::relay::RelayObserver;
use outbox::{Route, Store};

use crate::access::{Access, Gate, MacKey, Role};
use crate::app::App;
use crate::router;

/// A web page for one outbox.
///
/// ```no_run
/// # async fn serve(store: outbox::memory::MemoryStore) -> std::io::Result<()> {
/// use std::net::SocketAddr;
///
/// let dashboard = outbox_dashboard::Dashboard::builder(store).build();
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:9464").await?;
/// axum::serve(listener, dashboard.into_make_service_with_connect_info::<SocketAddr>()).await
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Dashboard;

impl Dashboard {
    /// Begins a dashboard of a store. Accepts a store, an `Arc` of one, or an `Arc<dyn Store>`.
    pub fn builder(store: impl Store) -> DashboardBuilder {
        DashboardBuilder {
            store: Arc::new(store),
            relay: None,
            access: Access::default(),
            payloads_for: Role::Operator,
            title: "outbox".to_owned(),
            base: None,
            hosts: Vec::new(),
            origins: Vec::new(),
            routes: Vec::new(),
            settings: Vec::new(),
            session_key: None,
            store_timeout: Duration::from_secs(5),
            sample_every: Duration::from_secs(15),
            redact: Arc::new(str::to_owned),
        }
    }
}

/// Replaces secrets in texts of errors and settings.
pub(crate) type Redact = Arc<dyn Fn(&str) -> String + Send + Sync>;

/// Builds a dashboard.
#[must_use = "a dashboard is built with `build`"]
pub struct DashboardBuilder {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) relay: Option<RelayObserver>,
    pub(crate) access: Access,
    pub(crate) payloads_for: Role,
    pub(crate) title: String,
    pub(crate) base: Option<String>,
    pub(crate) hosts: Vec<String>,
    pub(crate) origins: Vec<String>,
    pub(crate) routes: Vec<Route>,
    pub(crate) settings: Vec<(String, String)>,
    session_key: Option<[u8; 32]>,
    pub(crate) store_timeout: Duration,
    pub(crate) sample_every: Duration,
    pub(crate) redact: Redact,
}

impl DashboardBuilder {
    /// Sets who is let in. Default: [`Access::loopback`].
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Sets the role that sees payloads and values of headers. Default: operators.
    pub fn payloads_for(mut self, role: Role) -> Self {
        self.payloads_for = role;
        self
    }

    /// Adds the figures and the health of a relay of this process.
    pub fn relay(mut self, relay: RelayObserver) -> Self {
        self.relay = Some(relay);
        self
    }

    /// Sets the name of the outbox in the head of each page. Default: `outbox`.
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// Sets the path under which browsers find the dashboard. Needed only behind a proxy that
    /// removes a part of the path: a nested router finds its own.
    pub fn base_path(mut self, path: impl Into<String>) -> Self {
        self.base = Some(path.into().trim_end_matches('/').to_owned());
        self
    }

    /// Adds an origin of the dashboard, as `https://ops.example.com`. Needed only behind a proxy
    /// that replaces the `Host` header.
    pub fn origin(mut self, origin: impl Into<String>) -> Self {
        let origin = origin.into().trim_end_matches('/').to_ascii_lowercase();
        self.hosts.extend(origin.split_once("://").map(|(_, host)| host.to_owned()));
        self.origins.push(origin);
        self
    }

    /// Adds a route to the overview. Routes with messages or relays are found without it.
    pub fn route(mut self, route: Route) -> Self {
        self.routes.push(route);
        self
    }

    /// Adds a line to the page of settings. The dashboard shows it as it is: leave out secrets.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Sets the key that signs sessions. Needed only where several processes serve one dashboard
    /// without sticky sessions; it is a secret of theirs. Default: a random key.
    pub fn session_key(mut self, key: [u8; 32]) -> Self {
        self.session_key = Some(key);
        self
    }

    /// Sets the maximum duration of a page's calls to the store, and of each step of an operation.
    /// Default: 5 seconds.
    pub fn store_timeout(mut self, timeout: Duration) -> Self {
        self.store_timeout = timeout;
        self
    }

    /// Sets the pause between two samples of the charts, which cover the last 24 hours. Default: 15
    /// seconds.
    pub fn sample_every(mut self, pause: Duration) -> Self {
        self.sample_every = pause.max(Duration::from_secs(1));
        self
    }

    /// Sets a function that replaces secrets in texts of errors.
    pub fn redact(mut self, redact: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        self.redact = Arc::new(redact);
        self
    }

    /// Builds the router. Mount it anywhere, with [`nest`](Router::nest) or as the whole service.
    ///
    /// The charts are sampled by a small task. It starts with the first request, and ends when the
    /// router and its clones are dropped.
    pub fn build(self) -> Router {
        let key = self.session_key.map_or_else(MacKey::random, MacKey::new);
        let gate = Gate::new(self.access.clone());
        router::router(Arc::new(App::new(self, gate, key)))
    }
}

impl fmt::Debug for DashboardBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DashboardBuilder")
            .field("store", &self.store.name())
            .field("access", &self.access)
            .field("title", &self.title)
            .finish_non_exhaustive()
    }
}
