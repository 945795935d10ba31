//! Arguments that select messages or keys: some by name, or all that a filter lets through.

use clap::Args;
use outbox::admin::{Filter, MAX_PER_CALL};
use outbox::{Key, MessageId, Route, Topic};

use crate::exit::Failed;
use crate::open::Database;
use crate::time::{self, Between, Past};

/// Selection of messages or keys.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct FilterArgs {
    /// Only of this route
    #[arg(long, conflicts_with = "all_routes")]
    pub(crate) route: Option<Route>,
    /// Of all routes, those of inboxes included
    #[arg(long)]
    pub(crate) all_routes: bool,
    /// Only of this topic
    #[arg(long)]
    pub(crate) topic: Option<Topic>,
    /// Only of this key
    #[arg(long)]
    pub(crate) key: Option<Key>,
    /// Only from this time on: RFC 3339, or a duration ago by the database's clock
    #[arg(long, value_name = "TIME", value_parser = time::past)]
    since: Option<Past>,
    /// Only before this time
    #[arg(long, value_name = "TIME", value_parser = time::past)]
    before: Option<Past>,
    /// Maximum number
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
    /// Number to skip, for paging
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) offset: usize,
    /// From the end of the list: the newest first
    #[arg(long)]
    pub(crate) newest: bool,
}

impl FilterArgs {
    /// Number of items that a list shows unless another one is asked for.
    const SHOWN: usize = 100;

    /// Returns the number of items to list.
    pub(crate) fn shown(&self) -> usize {
        self.limit.unwrap_or(Self::SHOWN)
    }

    /// Returns the time that it selects.
    pub(crate) async fn between(&self, store: &dyn Database) -> Result<Between, Failed> {
        Between::of(store, (self.since, self.before)).await
    }

    /// Returns the filter of one page of a list: it may look at all routes.
    pub(crate) fn page(&self, time: Between, offset: usize, limit: usize) -> Filter {
        Filter {
            route: self.route.clone(),
            topic: self.topic.clone(),
            key: self.key.clone(),
            event_type: None,
            ids: None,
            since: time.since,
            before: time.before,
            limit: Some(limit.min(MAX_PER_CALL)),
            offset,
            newest: self.newest,
        }
    }

    /// Checks that an operation on many says of which route they are.
    pub(crate) fn names_route(&self, operation: &str) -> Result<(), Failed> {
        if self.route.is_some() || self.all_routes {
            return Ok(());
        }
        Err(Failed::usage(format!(
            "{operation} of several items needs a route: give --route default for what relays send, --route \
             inbox/NAME for an inbox, or --all-routes"
        )))
    }
}

/// Selection of messages.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct MessageFilter {
    #[command(flatten)]
    pub(crate) of: FilterArgs,
    /// Only of this type
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) event_type: Option<String>,
}

impl MessageFilter {
    /// Returns the filter of one page of a list: it may look at all routes.
    pub(crate) fn page(&self, time: Between, offset: usize, limit: usize) -> Filter {
        Filter { event_type: self.event_type.clone(), ..self.of.page(time, offset, limit) }
    }
}

/// Messages to change: some by their ids, or all that a filter selects.
#[derive(Args, Debug)]
pub(crate) struct Select {
    /// Ids of messages; without any, the filter selects
    #[arg(value_name = "ID")]
    pub(crate) ids: Vec<MessageId>,
    #[command(flatten)]
    pub(crate) filter: MessageFilter,
    /// Show what would be done, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

impl Select {
    /// Returns true if it selects all that the filter lets through, to be changed.
    pub(crate) fn is_all(&self) -> bool {
        let FilterArgs { limit, offset, .. } = self.filter.of;
        self.ids.is_empty() && !self.dry_run && limit.is_none() && offset == 0
    }
}

/// Keys to change: one by its name, or all failing or held ones that a filter selects.
#[derive(Args, Debug)]
pub(crate) struct SelectKeys {
    /// Topic and key; without them, the filter selects
    #[arg(value_names = ["TOPIC", "KEY"], num_args = 2, conflicts_with_all = ["topic", "key"])]
    pub(crate) name: Vec<String>,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Show what would be done, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}
