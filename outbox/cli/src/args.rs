//! Arguments of the program.

mod canary;
mod select;

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;
use outbox::admin::Filter;
use outbox::message::DueTime;
use outbox::{Consumer, Key, MessageId, Route, Topic};

use crate::exit::HELP;
use crate::time::{self, Past};

pub(crate) use canary::{CanaryArgs, VerifyArgs};
pub(crate) use select::{FilterArgs, MessageFilter, Select, SelectKeys};

/// Shows what waits in an outbox and why, repairs it, and runs its relay
#[derive(Debug, Parser)]
#[command(name = "outbox", version, after_help = HELP, propagate_version = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Arguments of every command.
#[derive(Args, Debug)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct Global {
    /// Database: sqlite:PATH, postgres://…, mysql://… or mongodb://…
    #[arg(long, global = true, value_name = "URL", env = "OUTBOX_STORE", hide_env_values = true)]
    pub(crate) store: Option<String>,
    /// Broker: kafka://HOST:PORT, amqp://… or redis://…
    #[arg(long, global = true, value_name = "URL", env = "OUTBOX_TRANSPORT", hide_env_values = true)]
    pub(crate) transport: Option<String>,
    /// Settings in TOML, with the names of the arguments
    #[arg(long, global = true, value_name = "FILE", env = "OUTBOX_CONFIG", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// One setting by its name in the file, as relay.lease=30s; more than once for several
    #[arg(long, global = true, value_name = "NAME=VALUE", action = ArgAction::Append)]
    pub(crate) set: Vec<String>,
    /// Print JSON, one object a line; the default where no terminal shows the output
    #[arg(long, global = true, conflicts_with = "table")]
    pub(crate) json: bool,
    /// Print tables, also where no terminal shows them
    #[arg(long, global = true)]
    pub(crate) table: bool,
    /// Do not ask before something is removed
    #[arg(long, short, global = true)]
    pub(crate) yes: bool,
    /// Name under which operations are recorded in the audit; by default user@host
    #[arg(long = "as", global = true, value_name = "NAME", env = "OUTBOX_AS")]
    pub(crate) actor: Option<String>,
    /// Log to the standard error from this level on: error, warn, info, debug or trace
    #[arg(long, global = true, value_name = "LEVEL", env = "OUTBOX_LOG")]
    pub(crate) log: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create the tables of the outbox, or upgrade them
    Migrate {
        /// Print the statements, and run nothing
        #[arg(long)]
        print: bool,
    },
    /// Check that the database, and the broker if one is named, are ready
    Check,
    /// Run a relay until SIGTERM or Ctrl-C, which drain and stop it; a second signal ends it at
    /// once
    Relay(RelayArgs),
    /// Serve a web page that shows all of this and carries out the same operations
    Dashboard(DashboardArgs),
    /// Show the backlog and what needs attention
    Status(StatusArgs),
    /// Show the status again and again, with relays and topics; once where no terminal shows it
    Top(StatusArgs),
    /// Show relays with their leases, or the owner of each bucket
    Relays(RelaysArgs),
    /// Show routes with their relays and pauses
    Routes,
    /// Show what waits and fails by topic
    Topics(OfRoute),
    /// Show why a key waits, and what to do
    Explain(KeyName),
    /// Messages to publish, which wait for a relay; `show` finds a message wherever it is
    #[command(subcommand)]
    Messages(View),
    /// Follow what is committed and what is delivered, as JSON lines
    Tail(TailArgs),
    /// Show who did what, to which messages
    Audit(AuditArgs),
    /// Dead letters: messages that were given up
    #[command(subcommand)]
    Dead(View),
    /// Messages that wait behind a failing or held key
    #[command(subcommand)]
    Parked(View),
    /// Messages that are due later
    #[command(subcommand)]
    Scheduled(View),
    /// Delivered messages, if the store keeps them
    #[command(subcommand)]
    History(View),
    /// Failing and held keys
    #[command(subcommand)]
    Keys(KeysView),
    /// Send dead letters again, each at the end of its key
    Requeue {
        #[command(flatten)]
        select: Select,
        /// Correct one dead letter first: fields as JSON, under the names of `dead show --json`;
        /// `-` reads the standard input
        #[arg(long, value_name = "JSON", requires = "ids")]
        edit: Option<String>,
    },
    /// Delete dead letters permanently
    Purge(Select),
    /// Send delivered messages again
    Replay(Select),
    /// Remove scheduled messages before they are due
    Cancel(Select),
    /// Make a consumer forget that it has handled messages: those that come again are handled again
    Forget(ForgetArgs),
    /// Hold keys: their messages wait until they are released
    Hold(SelectKeys),
    /// Let failing or held keys try again now
    Release(SelectKeys),
    /// Make the first waiting message of keys a dead letter, and go on with the next
    Skip(SelectKeys),
    /// Make all waiting messages of keys dead letters
    Discard(SelectKeys),
    /// Stop publishing a route, or one topic of it, on every relay
    Pause(PauseArgs),
    /// End a pause
    Resume(PauseArgs),
    /// Show the identity of the outbox, or give it a new one
    Identity {
        #[command(subcommand)]
        new: Option<IdentityCommand>,
    },
    /// Append a message, for a test
    Publish(PublishArgs),
    /// Send numbered messages through store, relay, broker and a consumer, and check their arrival
    Verify(VerifyArgs),
    /// Send a load the same way, and measure latency and rate
    Bench(CanaryArgs),
    /// Check everything, with a remedy for each finding
    Doctor,
    /// Look for the signs of a restored backup, of a copy of a database, and of tables that are of
    /// different times, before relays start there
    BackupCheck,
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write manual pages into a folder
    Man {
        /// The folder
        #[arg(value_hint = ValueHint::DirPath)]
        folder: PathBuf,
    },
}

#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum IdentityCommand {
    /// Give the outbox a new identity: after a restore, or on a copy of a database; relays must be
    /// stopped
    New,
}

#[derive(Args, Debug)]
pub(crate) struct RelayArgs {
    /// Send what is there, and end
    #[arg(long)]
    pub(crate) once: bool,
    /// With --once: give up after this time
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = time::span, requires = "once")]
    pub(crate) within: Duration,
    /// Serve /live, /health and /metrics here; a port alone is on 127.0.0.1
    #[arg(long, value_name = "ADDRESS", env = "OUTBOX_HTTP", num_args = 0..=1, default_missing_value = "127.0.0.1:9464")]
    pub(crate) http: Option<String>,
    /// Serve the dashboard there too: to this machine only, unless its settings let in others
    #[arg(long)]
    pub(crate) dashboard: bool,
    /// Export metrics and traces to this collector of OpenTelemetry, by OTLP over HTTP:
    /// http://HOST:4318. The variables OTEL_EXPORTER_OTLP_* do so, too
    #[arg(long, value_name = "URL", env = "OUTBOX_OTLP")]
    pub(crate) otlp: Option<String>,
    /// Name of this relay in logs and in the database
    #[arg(long, value_name = "NAME", env = "OUTBOX_LABEL")]
    pub(crate) label: Option<String>,
    /// CloudEvents source: a URI reference that names the service, as /orders
    #[arg(long, value_name = "URI", env = "OUTBOX_SOURCE")]
    pub(crate) source: Option<String>,
    /// Keep delivered messages for this time, for replay
    #[arg(long, value_name = "TIME", env = "OUTBOX_HISTORY", value_parser = time::span)]
    pub(crate) history: Option<Duration>,
    /// Maximum duration of a stop; what is unsent by then is sent after the next start
    #[arg(long, value_name = "TIME", env = "OUTBOX_STOP_WITHIN", value_parser = time::span)]
    pub(crate) stop_within: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct DashboardArgs {
    /// Address; a port alone is on 127.0.0.1; without one, 127.0.0.1:9464
    #[arg(long, value_name = "ADDRESS", env = "OUTBOX_HTTP")]
    pub(crate) http: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    /// Routes to show, besides those that have problems
    #[arg(long, value_name = "ROUTE", default_value = "default")]
    pub(crate) route: Vec<Route>,
    /// Show it again and again, with this pause
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "2s", value_parser = time::span)]
    pub(crate) watch: Option<Duration>,
    /// Age of the oldest message from which the outbox is not healthy
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time::span)]
    pub(crate) max_age: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct RelaysArgs {
    /// Only of this route
    #[arg(long)]
    pub(crate) route: Option<Route>,
    /// Show the owner of each bucket
    #[arg(long)]
    pub(crate) buckets: bool,
}

#[derive(Args, Debug)]
pub(crate) struct OfRoute {
    /// The route
    #[arg(long, default_value = "default")]
    pub(crate) route: Route,
}

#[derive(Args, Debug)]
pub(crate) struct TailArgs {
    /// Only of this route
    #[arg(long)]
    pub(crate) route: Option<Route>,
    /// Only of this topic
    #[arg(long)]
    pub(crate) topic: Option<Topic>,
    /// Only of this key
    #[arg(long)]
    pub(crate) key: Option<Key>,
    /// Number of waiting messages to begin with
    #[arg(long, short = 'n', value_name = "N", default_value_t = 10)]
    pub(crate) number: usize,
    /// Pause between two looks
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time::span)]
    pub(crate) every: Duration,
    /// Look once, and end
    #[arg(long)]
    pub(crate) once: bool,
}

impl TailArgs {
    /// Returns the filter of what is followed.
    pub(crate) fn filter(&self) -> Filter {
        Filter {
            route: self.route.clone(),
            topic: self.topic.clone(),
            key: self.key.clone(),
            ..Filter::all_routes()
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct AuditArgs {
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Only operations that name this message
    #[arg(long, value_name = "ID")]
    pub(crate) message: Option<MessageId>,
    /// Show the oldest first
    #[arg(long, conflicts_with = "newest")]
    pub(crate) oldest: bool,
}

/// One key.
#[derive(Args, Debug)]
pub(crate) struct KeyName {
    /// The topic
    pub(crate) topic: Topic,
    /// The key; of a message without one, its id
    pub(crate) key: Key,
    /// The route, if the key fails on several
    #[arg(long)]
    pub(crate) route: Option<Route>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum View {
    /// List messages
    List(MessageFilter),
    /// Show one message with its payload
    Show {
        /// Id of the message
        id: MessageId,
        /// Form of the payload
        #[arg(long, value_name = "FORM", default_value = "auto")]
        payload: Form,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeysView {
    /// List failing and held keys
    List(FilterArgs),
    /// Show a key with its waiting messages
    Show(KeyName),
}

/// Forms of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// JSON, text or hex, whichever the payload is
    Auto,
    Json,
    Text,
    Hex,
}

/// Messages that a consumer has handled.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("handled").multiple(true).required(true))]
pub(crate) struct ForgetArgs {
    /// Name of the consumer
    pub(crate) consumer: Consumer,
    /// Only of this topic
    #[arg(long, group = "handled")]
    pub(crate) topic: Option<Topic>,
    /// Only of this key
    #[arg(long, group = "handled")]
    pub(crate) key: Option<Key>,
    /// Only handled from this time on: RFC 3339, or a duration ago by the database's clock
    #[arg(long, group = "handled", value_name = "TIME", value_parser = time::past)]
    pub(crate) since: Option<Past>,
    /// Only handled before this time
    #[arg(long, group = "handled", value_name = "TIME", value_parser = time::past)]
    pub(crate) before: Option<Past>,
    /// Everything: the consumer is gone, or begins anew
    #[arg(long, group = "handled", conflicts_with_all = ["topic", "key", "since", "before"])]
    pub(crate) all: bool,
    /// Show the number, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Args, Debug)]
pub(crate) struct PauseArgs {
    /// The route
    #[arg(long)]
    pub(crate) route: Route,
    /// Only this topic of it
    #[arg(long)]
    pub(crate) topic: Option<Topic>,
}

#[derive(Args, Debug)]
pub(crate) struct PublishArgs {
    /// The topic
    pub(crate) topic: Topic,
    /// The ordering key
    #[arg(long)]
    pub(crate) key: Option<Key>,
    /// Type of the event
    #[arg(long = "type", value_name = "TYPE", default_value = "outbox.test")]
    pub(crate) event_type: String,
    /// Payload; `-` reads the standard input
    #[arg(long, value_name = "DATA", default_value = "{}")]
    pub(crate) data: String,
    /// Media type of the payload
    #[arg(long, value_name = "TYPE", default_value = "application/json")]
    pub(crate) content_type: String,
    /// Header; more than once for several
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) header: Vec<String>,
    /// The route
    #[arg(long, default_value = "default")]
    pub(crate) route: Route,
    /// Send it no earlier: RFC 3339, or a duration from now
    #[arg(long, value_name = "TIME", value_parser = time::future)]
    pub(crate) due: Option<DueTime>,
}
