//! Scheduled messages that are due join their keys.
//!
//! Only stripes whose lock is free are written to: a user's transaction that stays open delays due
//! messages of its own stripes, and no round waits for it with the locks of others. A stripe is
//! passed over whole, so what is due in it joins in its order, later.

use std::collections::BTreeSet;

use outbox_contract::backend::StripeId;
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Row};

use crate::again::{Chosen, append_again};
use crate::error::is_conflict;
use crate::fetch::number;
use crate::lease::now;
use crate::line::{in_transaction, run};
use crate::{sql, stripes};

/// The most entries of one list: of one that is longer MariaDB makes a table, and looks for its
/// rows otherwise than by the primary key.
const MAX_LISTED: usize = 500;

/// Maximum wait for a stripe that is never free, in seconds: where writers stand in line all the
/// time, this one has to do so too.
const PATIENCE: u32 = 1;

/// A stripe of a route.
type StripeOf = (String, u16);

/// Result of an attempt.
struct Joined {
    promoted: u64,
    /// Stripes that somebody else had locked.
    busy: BTreeSet<StripeOf>,
}

/// Appends what is due, up to a limit, but for what another transaction is still writing. Says how
/// many.
pub(crate) async fn promote(connection: &mut MySqlConnection, limit: usize) -> Result<u64, sqlx::Error> {
    let now = now(connection).await?;
    let most = number(limit).unsigned_abs();
    let mut made = BTreeSet::new();
    let (mut promoted, mut passed, mut busy) = (0, BTreeSet::new(), BTreeSet::new());
    while promoted < most {
        let due = due(connection, &due_statement(now, &passed, None, most - promoted)).await?;
        if due.is_empty() {
            break;
        }
        for row in &due {
            // A row that is not there would look like one that is locked.
            if made.insert(row.route.clone()) {
                stripes::make(connection, &row.route).await?;
            }
        }
        let before = passed.len();
        let joined =
            in_transaction(connection, async |connection| join(connection, &due, "skip locked").await);
        let joined = joined.await?;
        promoted += joined.promoted;
        passed.extend(joined.busy.iter().cloned());
        busy.extend(joined.busy);
        if joined.promoted == 0 {
            // Each message of theirs is locked, or gone.
            passed.extend(due.iter().map(stripe_of));
            if passed.len() == before {
                break;
            }
        }
    }
    if promoted < most && !busy.is_empty() {
        // Each has its turn: the clock chooses.
        let turn = usize::try_from(now.unsigned_abs() % busy.len() as u64).unwrap_or_default();
        let waited = busy.into_iter().nth(turn);
        promoted +=
            wait_for(connection, &due_statement(now, &passed, waited.as_ref(), most - promoted)).await?;
    }
    Ok(promoted)
}

fn stripe_of(row: &Chosen) -> StripeOf {
    (row.route.clone(), row.stripe.0)
}

/// Stands in line for one stripe, with no other locked.
async fn wait_for(connection: &mut MySqlConnection, of_the_stripe: &str) -> Result<u64, sqlx::Error> {
    let due = due(connection, of_the_stripe).await?;
    run(connection, format!("set session innodb_lock_wait_timeout = {PATIENCE}")).await?;
    let joined = in_transaction(connection, async |connection| join(connection, &due, "").await).await;
    let reset = run(connection, "set session innodb_lock_wait_timeout = @outbox_locks").await;
    match joined {
        Ok(joined) => reset.map(|()| joined.promoted),
        // It did not come free: next time.
        Err(error) if is_conflict(&error) => reset.map(|()| 0),
        Err(error) => Err(error),
    }
}

/// Messages that are due, in the order of their due time and then of their scheduling.
async fn due(connection: &mut MySqlConnection, statement: &str) -> Result<Vec<Chosen>, sqlx::Error> {
    let rows = sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).fetch_all(connection).await?;
    let mut due = Vec::with_capacity(rows.len());
    for row in &rows {
        let route: &[u8] = row.try_get_unchecked(1)?;
        due.push(Chosen {
            entry: row.try_get_unchecked(0)?,
            route: String::from_utf8_lossy(route).into_owned(),
            // As it was written: if it is not that of the key, the message becomes a dead letter
            // that says so.
            stripe: StripeId(row.try_get_unchecked::<u16, _>(2)?),
        });
    }
    Ok(due)
}

/// The statement for what is due: of one stripe, or of all but those that are passed over.
fn due_statement(now: i64, passed: &BTreeSet<StripeOf>, only: Option<&StripeOf>, limit: u64) -> String {
    let among = |stripes: &mut dyn Iterator<Item = &StripeOf>| {
        let stripes: Vec<(&str, u16)> = stripes.map(|(route, stripe)| (route.as_str(), *stripe)).collect();
        sql::among("route", "stripe", stripes)
    };
    let stripes = match only {
        Some(only) => among(&mut std::iter::once(only)),
        None => format!("not {}", among(&mut passed.iter())),
    };
    format!(
        "select entry, route, stripe from outbox_scheduled force index (outbox_scheduled_due) \
         where due_at <= {now} and {stripes} order by due_at, entry limit {limit}"
    )
}

/// The statement as a round writes it, for the server to prepare when the tables are checked.
pub(crate) fn sample() -> String {
    due_statement(0, &BTreeSet::new(), None, 1)
}

/// Appends these messages in the open transaction, if their stripes can be locked and no other
/// transaction has locked them.
async fn join(connection: &mut MySqlConnection, due: &[Chosen], or: &str) -> Result<Joined, sqlx::Error> {
    sqlx::query(sql::PROMOTING).fetch_one(&mut *connection).await?;
    let wanted: BTreeSet<StripeOf> = due.iter().map(stripe_of).collect();
    let stripes =
        sql::among("route", "stripe", wanted.iter().map(|(route, stripe)| (route.as_str(), *stripe)));
    let lock = format!(
        "select route, stripe from outbox_stripe force index (primary) where {stripes} order by route, stripe for update {or}"
    );
    let mut free = BTreeSet::new();
    for row in &sqlx::raw_sql(AssertSqlSafe(lock)).fetch_all(&mut *connection).await? {
        let route: &[u8] = row.try_get_unchecked(0)?;
        free.insert((String::from_utf8_lossy(route).into_owned(), row.try_get_unchecked::<u16, _>(1)?));
    }
    let busy = wanted.difference(&free).cloned().collect();
    let within: Vec<i64> =
        due.iter().filter(|row| free.contains(&stripe_of(row))).map(|row| row.entry).collect();
    if within.is_empty() {
        return Ok(Joined { promoted: 0, busy });
    }
    let lock = |entries: &[i64]| {
        format!(
            "select entry from outbox_scheduled force index (primary) where entry in ({}) for update skip locked",
            sql::commas(entries)
        )
    };
    let lock: Vec<String> = within.chunks(MAX_LISTED).map(lock).collect();
    let mut ours = BTreeSet::new();
    for row in &sqlx::raw_sql(AssertSqlSafe(stripes::in_open_transaction(&lock.join("; "))))
        .fetch_all(&mut *connection)
        .await?
    {
        ours.insert(row.try_get_unchecked::<i64, _>(0)?);
    }
    let chosen: Vec<Chosen> = due.iter().filter(|row| ours.contains(&row.entry)).cloned().collect();
    let promoted = append_again(connection, &chosen, sql::PROMOTE, Some(sql::PROMOTE_REMOVE)).await?;
    Ok(Joined { promoted, busy })
}
