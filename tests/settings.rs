//! The defaults in the book are the defaults of the code.

use std::time::Duration;

use outbox_contract::{Exhausted, RetryPolicy};
use outbox_engine::{InboxConfig, Mode, RelayConfig};
use outbox_store_mongodb::MongoDbOptions;
use outbox_store_mysql::MySqlOptions;
use outbox_store_postgres::PostgresOptions;
use outbox_store_sqlite::{Durability, SqliteOptions};

/// A default, as code or a reader knows it.
#[derive(Debug, PartialEq)]
enum Setting {
    Time(Duration),
    Number(u64),
    Word(String),
}

impl From<Duration> for Setting {
    fn from(time: Duration) -> Self {
        Self::Time(time)
    }
}

impl From<usize> for Setting {
    fn from(number: usize) -> Self {
        Self::Number(number as u64)
    }
}

impl From<u32> for Setting {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<u64> for Setting {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for Setting {
    fn from(word: &str) -> Self {
        Self::Word(word.to_owned())
    }
}

impl From<Exhausted> for Setting {
    fn from(exhausted: Exhausted) -> Self {
        Self::Word(exhausted.name().replace('_', " "))
    }
}

impl From<Durability> for Setting {
    fn from(durability: Durability) -> Self {
        Self::from(match durability {
            Durability::PowerLoss => "power loss",
            Durability::ProcessEnd => "the end of the process",
            other => panic!("{other:?} has no text"),
        })
    }
}

/// Reads a default as it is written for people: `15 s`, `1,000`, `8 MiB`, `dead letter`.
fn read(text: &str) -> Setting {
    let text = text.trim().trim_matches('`');
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let Ok(number) = number.replace(',', "").parse::<u64>() else { return text.into() };
    match unit {
        "" => Setting::Number(number),
        "MiB" => Setting::Number(number << 20),
        "ms" => Duration::from_millis(number).into(),
        "s" => Duration::from_secs(number).into(),
        "min" => Duration::from_secs(60 * number).into(),
        "days" => Duration::from_secs(86_400 * number).into(),
        _ => text.into(),
    }
}

/// The default that a page gives for a setting.
fn told(page: &str, name: &str) -> Setting {
    let start = format!("| `{name}` | ");
    let row = page.lines().find_map(|line| line.strip_prefix(&start));
    let row = row.unwrap_or_else(|| panic!("the book does not name {name}"));
    read(row.split('|').next().unwrap_or_default())
}

fn page(name: &str) -> String {
    let path = outbox_tests::root().join("book/src").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Compares fields of a value with what a page says of them.
macro_rules! assert_told {
    ($page:expr, $value:expr, [$($field:ident),* $(,)?]) => {
        let (page, value) = ($page, $value);
        $(assert_eq!(told(&page, stringify!($field)), value.$field.into(), stringify!($field));)*
    };
}

#[test]
fn the_defaults_of_a_relay_are_those_of_the_book() {
    let config = RelayConfig::default();
    let page = page("configuration.md");
    assert_eq!(told(&page, "label"), config.label.as_str().into());
    assert_eq!(told(&page, "source"), "none".into());
    assert_eq!(config.source, None);
    assert_told!(
        page,
        config,
        [
            lease,
            heartbeat,
            publish_timeout,
            store_timeout,
            fetch_batch,
            fetch_batch_bytes,
            max_in_flight,
            max_in_flight_bytes,
            per_key,
            max_unconfirmed_batches,
            publish_batch,
            publish_batch_bytes,
            idle_poll,
            due_poll,
            maintain_every,
            observe_every,
            unhealthy_age,
            outage_first_delay,
            outage_max_delay,
        ]
    );
}

#[test]
fn the_defaults_of_an_inbox_are_those_of_the_book() {
    let config = InboxConfig::default();
    let page = page("configuration.md");
    let section = page.split("\n## ").find(|section| section.starts_with("The inbox\n")).unwrap().to_owned();
    assert_eq!(told(&section, "label"), config.label.as_str().into());
    assert_eq!((told(&section, "mode"), config.mode), ("direct".into(), Mode::Direct));
    assert_eq!((told(&section, "lease"), config.lease), ("none".into(), None));
    assert_eq!((told(&section, "concurrency"), config.concurrency), ("none".into(), None));
    assert_eq!(told(&section, "offset_reset"), config.offset_reset.name().into());
    assert_told!(
        section,
        config,
        [
            batch,
            prefetch,
            prefetch_bytes,
            max_undecodable,
            tries,
            first_delay,
            max_delay,
            store_timeout,
            due_poll,
            outage_first_delay,
            outage_max_delay,
            unhealthy_age,
            wait_for_upgrade,
        ]
    );
}

#[test]
fn the_defaults_of_retries_are_those_of_the_book() {
    let policy = RetryPolicy::default();
    let page = page("configuration.md");
    let section =
        page.split("\n## ").find(|section| section.starts_with("Retry policy\n")).unwrap().to_owned();
    assert_eq!((told(&section, "rules"), policy.rules.len()), ("none".into(), 0));
    assert_eq!((told(&section, "factor"), policy.factor.to_bits()), (Setting::Number(2), 2_f64.to_bits()));
    assert_told!(section, policy, [max_attempts, first_delay, max_delay, exhausted]);
}

#[test]
fn the_defaults_of_the_store_in_sqlite_are_those_of_the_book() {
    let options = SqliteOptions::default();
    assert_eq!(
        Some(told(&page("configuration.md"), "watch_interval")),
        options.watch_interval.map(Setting::from)
    );
    assert_eq!((told(&page("configuration.md"), "history"), options.history), ("none".into(), None));
    assert_told!(
        page("configuration.md"),
        options,
        [handled_ids_kept, handled_ids_max_age, counting_limit, busy_timeout, connections, durability]
    );
}

/// Else a row that somebody else holds for long would count as a database that does not answer.
#[test]
fn a_store_gives_up_waiting_for_others_clearly_before_it_is_given_up() {
    let given_up = RelayConfig::default().store_timeout.min(InboxConfig::default().store_timeout);
    let waits = [
        ("PostgreSQL", PostgresOptions::default().lock_timeout),
        ("MySQL", MySqlOptions::default().lock_timeout),
        ("SQLite", SqliteOptions::default().busy_timeout),
        ("MongoDB", MongoDbOptions::default().conflict_timeout),
    ];
    for (store, waits) in waits {
        assert!(waits + Duration::from_secs(1) <= given_up, "{store} waits for {waits:?}");
    }
}

#[test]
fn defaults_are_read_as_people_write_them() {
    assert_eq!(read("1,000"), Setting::Number(1_000));
    assert_eq!(read("8 MiB"), Setting::Number(8 * 1024 * 1024));
    assert_eq!(read("200 ms"), Setting::Time(Duration::from_millis(200)));
    assert_eq!(read("5 min "), Setting::Time(Duration::from_secs(300)));
    assert_eq!(read("7 days"), Setting::Time(Duration::from_secs(604_800)));
    assert_eq!(read("`relay`"), Setting::Word("relay".to_owned()));
    assert_eq!(read("2 bananas"), Setting::Word("2 bananas".to_owned()));
}
