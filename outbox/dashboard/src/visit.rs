//! A visit: one request of a visitor who was let in.

use std::sync::Arc;

use outbox::admin::Actor;
use outbox::{Admin, Store, StoreError, Timestamp};

use crate::access::{Principal, Role};
use crate::app::App;
use crate::params::Params;
use crate::problem::{Problem, limited};
use crate::session::Session;

/// One request of a visitor.
#[derive(Clone, Debug)]
pub(crate) struct Visit {
    pub(crate) app: Arc<App>,
    /// Host that the browser asked, with its port.
    pub(crate) host: String,
    /// Path under which the dashboard is mounted, without a slash at its end.
    pub(crate) base: String,
    /// Path within the dashboard.
    pub(crate) path: String,
    pub(crate) params: Params,
    pub(crate) principal: Principal,
    pub(crate) session: Session,
    pub(crate) now: Timestamp,
}

impl Visit {
    /// Returns the address of a page.
    pub(crate) fn link(&self, path: &str, params: &Params) -> String {
        params.to(&format!("{}{path}", self.base))
    }

    /// Returns the address of a page with a few parameters.
    pub(crate) fn to(&self, path: &str, params: &[(&str, &str)]) -> String {
        self.link(path, &params.iter().copied().collect())
    }

    /// Returns the store, to look.
    pub(crate) fn store(&self) -> &dyn Store {
        &*self.app.store
    }

    /// Returns the store, to act under the visitor's name.
    pub(crate) fn admin(&self) -> Box<dyn Admin + '_> {
        self.app.store.acting_as(Actor::new(format!("{} (dashboard)", self.principal.name)))
    }

    /// Waits for the store, for a limited time.
    pub(crate) async fn ask<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Problem> {
        limited(self.app.store_timeout, call).await
    }

    /// Returns true if the visitor may carry out operations.
    pub(crate) fn may_act(&self) -> bool {
        self.principal.role >= Role::Operator
    }

    /// Returns true if the visitor may see payloads and values of headers.
    pub(crate) fn may_see_payloads(&self) -> bool {
        self.principal.role >= self.app.payloads_for
    }

    /// Returns the token of the forms of this page.
    pub(crate) fn form_token(&self) -> String {
        self.session.form_token(&self.principal.name, &self.app.key)
    }

    /// Returns the result of the operation that led here.
    pub(crate) fn notice(&self) -> Option<String> {
        self.session.noticed(self.params.get("did")?, &self.app.key, seconds(self.now))
    }
}

/// Returns seconds since 1970.
pub(crate) fn seconds(now: Timestamp) -> u64 {
    u64::try_from(now.as_micros() / 1_000_000).unwrap_or_default()
}
