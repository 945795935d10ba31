//! Settings: a file, then the environment, then arguments, each over the one before, all with the
//! same names.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use outbox::relay::{RelayConfig, duration};
use outbox_dashboard::{Access, User};
use serde::Deserialize;
use toml::{Table, Value};

use crate::args::Global;
use crate::exit::Failed;
use crate::redact;

/// Beginning of the environment variables that are settings of the relay.
const RELAY_VARIABLES: &str = "OUTBOX_RELAY_";

/// Environment variables with a token of the dashboard, and the settings that they are.
const TOKENS: [(&str, &str); 2] = [
    ("OUTBOX_DASHBOARD_TOKEN", "dashboard.operators.operator"),
    ("OUTBOX_DASHBOARD_READ_ONLY_TOKEN", "dashboard.readers.reader"),
];

/// Everything that can be set.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Settings {
    /// URL of the database.
    pub(crate) store: Option<String>,
    /// URL of the broker.
    pub(crate) transport: Option<String>,
    /// Retention of delivered messages, whatever the database is.
    #[serde(with = "duration::option")]
    pub(crate) history: Option<Duration>,
    /// Options of the store, of each kind of database.
    #[cfg(feature = "postgres")]
    pub(crate) postgres: outbox::postgres::PostgresOptions,
    #[cfg(feature = "mysql")]
    pub(crate) mysql: outbox::mysql::MySqlOptions,
    #[cfg(feature = "mongodb")]
    pub(crate) mongodb: outbox::mongodb::MongoDbOptions,
    #[cfg(feature = "sqlite")]
    pub(crate) sqlite: outbox::sqlite::SqliteOptions,
    /// Address of health and metrics of a relay.
    pub(crate) http: Option<String>,
    /// URL of a collector of OpenTelemetry.
    pub(crate) otlp: Option<String>,
    /// Maximum duration of a stop of a relay.
    #[serde(with = "duration")]
    pub(crate) stop_within: Duration,
    /// Level of the log.
    pub(crate) log: String,
    /// Configuration of a relay.
    pub(crate) relay: RelayConfig,
    /// Further routes of a relay, each with the URL of its broker.
    pub(crate) routes: BTreeMap<String, String>,
    /// The web page.
    pub(crate) dashboard: Dashboard,
    /// Settings of RabbitMQ.
    pub(crate) rabbitmq: RabbitMq,
    /// Settings of Kafka.
    pub(crate) kafka: Kafka,
    /// Settings of Redis.
    pub(crate) redis: Redis,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            store: None,
            transport: None,
            history: None,
            #[cfg(feature = "postgres")]
            postgres: outbox::postgres::PostgresOptions::default(),
            #[cfg(feature = "mysql")]
            mysql: outbox::mysql::MySqlOptions::default(),
            #[cfg(feature = "mongodb")]
            mongodb: outbox::mongodb::MongoDbOptions::default(),
            #[cfg(feature = "sqlite")]
            sqlite: outbox::sqlite::SqliteOptions::default(),
            http: None,
            otlp: None,
            stop_within: Duration::from_secs(20),
            log: "warn".to_owned(),
            relay: RelayConfig::default(),
            routes: BTreeMap::new(),
            dashboard: Dashboard::default(),
            rabbitmq: RabbitMq::default(),
            kafka: Kafka::default(),
            redis: Redis::default(),
        }
    }
}

/// Settings of the dashboard. Without users and proxies, only this machine is let in.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Dashboard {
    /// True: a relay serves it, too.
    pub(crate) enabled: bool,
    /// Name of the outbox in the head of each page.
    pub(crate) title: Option<String>,
    /// Kind of the users' secrets: `token` or `password`.
    login: Option<String>,
    /// Secrets of those who act, by name.
    operators: BTreeMap<String, String>,
    /// Secrets of those who look, by name.
    readers: BTreeMap<String, String>,
    /// Header in which a proxy names whom it has authenticated.
    proxy_header: Option<String>,
    /// Addresses or networks of that proxy.
    proxies: Vec<String>,
    /// Those whom it names who act.
    proxy_operators: Vec<String>,
    /// True: those who look see payloads.
    pub(crate) payloads_for_readers: bool,
    /// Origins under which browsers find it, behind a proxy.
    pub(crate) origins: Vec<String>,
    /// Path under which browsers find it, behind a proxy.
    pub(crate) base_path: Option<String>,
}

/// Shows no secret.
impl fmt::Debug for Dashboard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dashboard").field("enabled", &self.enabled).finish_non_exhaustive()
    }
}

impl Dashboard {
    /// Returns who is let in.
    pub(crate) fn access(&self) -> Result<Access, Failed> {
        let users = || {
            let operators = self.operators.iter().map(|(name, secret)| User::operator(name, secret));
            operators.chain(self.readers.iter().map(|(name, secret)| User::read_only(name, secret)))
        };
        let has_users = users().next().is_some();
        let access = match (&self.proxy_header, self.login.as_deref()) {
            (Some(_), _) if has_users => {
                return Err(Failed::usage(
                    "the dashboard has both users and a proxy_header; choose one of the two",
                ));
            }
            (Some(header), _) => Access::proxy(header, &self.proxies, self.proxy_operators.iter().cloned()),
            (None, None | Some("token")) if has_users => Access::tokens(users()),
            (None, Some("password")) => Access::basic(users()),
            (None, None) => Ok(Access::loopback()),
            (None, Some("token")) => Access::tokens(users()),
            (None, Some(other)) => {
                return Err(Failed::usage(format!("dashboard.login is {other:?}; write token or password")));
            }
        };
        access.map_err(|error| Failed::usage(error.to_string()))
    }

    fn secrets(&self) -> impl Iterator<Item = &String> {
        self.operators.values().chain(self.readers.values())
    }
}

/// Settings of RabbitMQ. Empty ones are the transport's defaults.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(not(feature = "rabbitmq"), allow(dead_code, reason = "read by the transport"))]
pub(crate) struct RabbitMq {
    /// Exchange that messages are published to.
    pub(crate) exchange: Option<String>,
    /// Queues of each consumer of a topic.
    pub(crate) partitions: Option<u32>,
    /// Consumers whose queues are declared, by topic. None: queues must exist.
    pub(crate) declare: BTreeMap<String, Vec<String>>,
    /// Exchange that declared queues send dropped messages to.
    pub(crate) dead_letters: Option<String>,
    /// Maximum deliveries of a message by a declared queue.
    pub(crate) delivery_limit: Option<u32>,
    /// Maximum number of messages in a declared queue.
    pub(crate) max_waiting: Option<u32>,
    /// Maximum size of a payload, in bytes.
    pub(crate) max_message_bytes: Option<usize>,
    /// File with authorities of the broker's certificate, in PEM.
    pub(crate) authorities: Option<PathBuf>,
}

/// Settings of Kafka.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(not(feature = "kafka"), allow(dead_code, reason = "read by the transport"))]
pub(crate) struct Kafka {
    /// TLS with the brokers.
    pub(crate) tls: bool,
    /// Mechanism that sends user and password of the URL: `plain`, `scram-sha-256`,
    /// `scram-sha-512`.
    pub(crate) mechanism: Option<String>,
    /// Properties of librdkafka.
    pub(crate) properties: BTreeMap<String, String>,
}

/// Settings of Redis.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "read by the transport"))]
pub(crate) struct Redis {
    /// Beginning of all keys.
    pub(crate) prefix: Option<String>,
    /// Units of a topic.
    pub(crate) units: Option<u32>,
    /// Other nodes of a cluster, as URLs; may be empty. None: the server is no cluster.
    pub(crate) cluster: Option<Vec<String>>,
    /// Retention of entries that every group has read: a duration, or `everything`, which leaves
    /// trimming to others.
    pub(crate) retention: Option<String>,
    /// Number of replicas that have to confirm.
    pub(crate) confirm_replicas: Option<u32>,
    /// True: a write is confirmed when it is on the disk.
    pub(crate) confirm_disk: bool,
    /// File with authorities of the server's certificate, in PEM.
    pub(crate) authorities: Option<PathBuf>,
}

impl Settings {
    /// Reads all settings.
    pub(crate) fn read(global: &Global) -> Result<Self, Failed> {
        let mut table = global.config.as_deref().map_or_else(|| Ok(Table::new()), file)?;
        for (name, value) in std::env::vars_os() {
            let (Some(name), Some(value)) = (name.to_str(), value.to_str()) else { continue };
            if let Some(name) = name.strip_prefix(RELAY_VARIABLES) {
                set(&mut table, &path_of_variable(name), guessed(value))?;
            }
            if let Some((_, path)) = TOKENS.iter().find(|(variable, _)| *variable == name) {
                set(&mut table, path, Value::String(value.to_owned()))?;
            }
        }
        for (name, value) in
            [("store", &global.store), ("transport", &global.transport), ("log", &global.log)]
        {
            if let Some(value) = value {
                set(&mut table, name, Value::String(value.clone()))?;
            }
        }
        for pair in &global.set {
            let Some((name, value)) = pair.split_once('=') else {
                return Err(Failed::usage(format!(
                    "--set {pair:?} has no `=`; write --set NAME=VALUE, as --set relay.lease=30s"
                )));
            };
            set(&mut table, name, guessed(value))?;
        }
        for name in ["store", "transport"] {
            table.get(name).and_then(Value::as_str).into_iter().for_each(redact::learn);
        }
        let routes = table.get("routes").and_then(Value::as_table);
        routes.into_iter().flat_map(Table::values).filter_map(Value::as_str).for_each(redact::learn);
        let settings = Self::deserialize(Value::Table(table));
        let settings = settings.map_err(|error| Failed::usage(invalid(&error)))?;
        settings.redis.cluster.iter().flatten().for_each(|url| redact::learn(url));
        settings.dashboard.secrets().for_each(|secret| redact::learn_secret(secret));
        Ok(settings)
    }

    /// Returns the URL of the database.
    pub(crate) fn store(&self) -> Result<&str, Failed> {
        self.store.as_deref().ok_or_else(|| missing("database", "store", "postgres://user@host/database"))
    }

    /// Returns the URL of the broker.
    pub(crate) fn transport(&self) -> Result<&str, Failed> {
        self.transport.as_deref().ok_or_else(|| missing("broker", "transport", "kafka://host:9092"))
    }
}

/// Says what is wrong, and of which setting.
fn invalid(error: &toml::de::Error) -> String {
    let words = error.message();
    // The error has the path of the setting in its text alone, on a line of its own.
    let text = error.to_string();
    let path = text.lines().filter_map(|line| line.strip_prefix("in `")?.strip_suffix('`')).next_back();
    path.map_or_else(
        || format!("invalid settings: {words}"),
        |path| format!("invalid settings: {path}: {words}"),
    )
}

fn missing(what: &str, name: &str, example: &str) -> Failed {
    Failed::usage(format!(
        "no {what} is named; give its URL with --{name}, in OUTBOX_{}, or as `{name}` in the file of --config; \
         for example {example}",
        name.to_uppercase()
    ))
}

/// Reads a file. Errors show no line of it, as a line may hold a password.
fn file(path: &Path) -> Result<Table, Failed> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failed::usage(format!("could not read {}: {error}", path.display())))?;
    text.parse::<Table>().map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        Failed::usage(format!("{}:{line}: {}", path.display(), error.message()))
    })
}

/// Returns the path of a setting of the relay: `RETRY_MAX_ATTEMPTS` is `relay.retry.max_attempts`.
fn path_of_variable(name: &str) -> String {
    let name = name.to_lowercase();
    match name.strip_prefix("retry_") {
        Some(name) => format!("relay.retry.{name}"),
        None => format!("relay.{name}"),
    }
}

/// Returns the value that a text means in a file: a number, a truth value or a list as such.
fn guessed(text: &str) -> Value {
    if text.starts_with('[')
        && let Ok(mut table) = format!("list = {text}").parse::<Table>()
        && let Some(list) = table.remove("list")
    {
        return list;
    }
    if let Ok(number) = text.parse() {
        return Value::Integer(number);
    }
    text.parse().map_or_else(|_| Value::String(text.to_owned()), Value::Boolean)
}

fn set(table: &mut Table, path: &str, value: Value) -> Result<(), Failed> {
    let (mut table, mut rest) = (table, path);
    while let Some((first, after)) = rest.split_once('.') {
        // Names of routes and properties have dots of their own.
        let has_free_names = matches!(first, "routes" | "properties" | "operators" | "readers");
        let next = table.entry(first).or_insert_with(|| Value::Table(Table::new()));
        table = next.as_table_mut().ok_or_else(|| {
            Failed::usage(format!("invalid settings: {path}: {first} is not a table, and has no {after}"))
        })?;
        rest = after;
        if has_free_names {
            break;
        }
    }
    table.insert(rest.to_owned(), value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Settings, String> {
        let table: Table = text.parse().unwrap();
        Settings::deserialize(Value::Table(table)).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn a_file_has_the_names_of_the_arguments() {
        let settings = read(
            "store = 'sqlite:a'\nhistory = '3d'\n[relay]\nlease = '30s'\n[[relay.retry.rules]]\ntopic = 'a.b'\nmax_attempts = 2\n",
        );
        let settings = settings.unwrap();
        assert_eq!(settings.history, Some(Duration::from_secs(3 * 86_400)));
        let rule = &settings.relay.retry.rules[0];
        assert_eq!((settings.relay.lease, rule.max_attempts), (Duration::from_secs(30), Some(2)));
    }

    #[test]
    fn an_unknown_name_is_refused_with_those_that_are_known() {
        let error = read("stor = 'sqlite:a'").unwrap_err();
        assert!(error.contains("`stor`") && error.contains("`store`"), "{error}");
        let error = read("[relay]\nleese = '30s'").unwrap_err();
        assert!(error.contains("`leese`") && error.contains("`lease`"), "{error}");
    }

    /// Each option of each store and transport that the program can have is a setting.
    #[test]
    #[cfg(all(feature = "postgres", feature = "mysql", feature = "mongodb", feature = "sqlite"))]
    fn stores_and_transports_have_tables_of_their_own() {
        let settings = read(
            "[postgres]\nschema = 'shop'\n[mysql]\nwatch_interval = 'none'\n[mongodb]\nchange_streams = false\n\
             [sqlite]\ndurability = 'process-end'\n[redis]\ncluster = []\nretention = '7d'\nconfirm_replicas = 1\n\
             [rabbitmq]\ndead_letters = 'dropped'\nmax_waiting = 9\n",
        );
        let settings = settings.unwrap();
        assert_eq!(settings.postgres.schema.as_deref(), Some("shop"));
        assert_eq!((settings.mysql.watch_interval, settings.mysql.connections), (None, 10));
        assert!(!settings.mongodb.change_streams);
        assert_eq!(settings.sqlite.durability, outbox::sqlite::Durability::ProcessEnd);
        assert_eq!((settings.redis.cluster, settings.redis.confirm_replicas), (Some(Vec::new()), Some(1)));
        assert_eq!((settings.rabbitmq.max_waiting, settings.rabbitmq.delivery_limit), (Some(9), None));
    }

    #[test]
    fn the_dashboard_lets_in_those_whom_its_settings_name() {
        let access = |text: &str| read(&format!("[dashboard]\n{text}")).unwrap().dashboard.access();
        let is = |text: &str, mode: &str| {
            let access = format!("{:?}", access(text).unwrap());
            assert!(access.contains(mode) && !access.contains("secret-"), "{access}");
        };
        is("", "Loopback");
        is("operators.ann = 'secret-secret'", "Tokens");
        is("login = 'password'\nreaders.bob = 'secret-secret'", "Basic");
        is("proxy_header = 'x-user'\nproxies = ['10.0.0.0/8']", "Proxy");
        for wrong in [
            "operators.ann = 'short'",
            "login = 'token'",
            "login = 'key'",
            "proxy_header = 'x-user'",
            "proxy_header = 'x-user'\nproxies = ['::1']\noperators.ann = 'secret-secret'",
        ] {
            let error = access(wrong).unwrap_err().to_string();
            assert!(!error.contains("secret-"), "{error}");
        }
        let shown = format!("{:?}", read("[dashboard]\noperators.ann = 'secret-secret'").unwrap());
        assert!(!shown.contains("secret-"), "{shown}");
    }

    #[test]
    fn a_path_sets_a_value_in_its_table() {
        let mut table = Table::new();
        set(&mut table, &path_of_variable("RETRY_MAX_ATTEMPTS"), guessed("3")).unwrap();
        set(&mut table, "routes.a.b", guessed("kafka://x")).unwrap();
        let settings = Settings::deserialize(Value::Table(table.clone())).unwrap();
        assert_eq!(settings.relay.retry.max_attempts, 3);
        assert_eq!(settings.routes["a.b"], "kafka://x");
        let rules =
            r#"[{topic = "a.*", max_attempts = "unlimited"}, {class = "timeout", exhausted = "discard"}]"#;
        set(&mut table, "relay.retry.rules", guessed(rules)).unwrap();
        let settings = Settings::deserialize(Value::Table(table.clone())).unwrap();
        assert_eq!(settings.relay.retry.rules.len(), 2);
        assert_eq!(guessed("[x"), Value::String("[x".to_owned()));
        table.insert("http".to_owned(), guessed("x"));
        assert!(set(&mut table, "http.port", guessed("1")).is_err());
    }
}
