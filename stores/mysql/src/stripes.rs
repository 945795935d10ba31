//! Stripes: numbers and positions, taken under a lock that is held until the transaction ends.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use outbox_contract::Route;
use outbox_contract::backend::{BucketSet, Position, STRIPES, Stripe, StripeId, StripeMark};
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, Row};

use crate::sql;

/// The clock of the tables: microseconds since 1970.
const CLOCK: &str = "timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6))";

/// Place of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) stripe: StripeId,
    pub(crate) number: i64,
    pub(crate) position: i64,
}

/// Numbers that an append takes of each stripe that it writes to. Pure.
///
/// A position is the clock's microseconds, plus which row of the append it is, times 1,024, plus
/// the stripe: no two stripes of a route share one, and as long as the clock goes on they are in
/// the order of the append. Within a stripe each is above the one before, whatever the clock says.
#[derive(Debug)]
pub(crate) struct Taking<'r> {
    /// Those of each stripe, in the order in which stripes are locked: the same for every writer.
    shares: BTreeMap<(&'r str, StripeId), Share>,
    /// For each row, its stripe, and which row of it in this append.
    rows: Vec<((&'r str, StripeId), i64)>,
}

/// Numbers taken of one stripe: their count, and the first and the last row of the append in it.
#[derive(Debug)]
struct Share {
    count: i64,
    first: i64,
    last: i64,
}

impl<'r> Taking<'r> {
    pub(crate) fn new(rows: impl IntoIterator<Item = (&'r str, StripeId)>) -> Self {
        let mut shares: BTreeMap<(&'r str, StripeId), Share> = BTreeMap::new();
        let rows = (0..)
            .zip(rows)
            .map(|(at, stripe)| {
                let share = shares.entry(stripe).or_insert(Share { count: 0, first: at, last: at });
                (share.count, share.last) = (share.count + 1, at);
                (stripe, share.count - 1)
            })
            .collect();
        Self { shares, rows }
    }

    /// The statement that locks the stripes and takes their numbers. A row that is there is changed
    /// in its current state, under every isolation level; where the server keeps to snapshots
    /// (`innodb_snapshot_isolation`, MariaDB's default from 11.6.2 on), a transaction that is
    /// REPEATABLE READ and began to read before the row was last changed is in conflict (1020).
    /// Every assignment reads old values only, in whichever order the server makes them.
    fn take(&self) -> String {
        let mut sql = String::from(
            "insert into outbox_stripe (route, stripe, number, position, first_number, first_position, previous_position) values ",
        );
        for (at, ((route, stripe), share)) in self.shares.iter().enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            let (route, stripe, Share { count, first, last }) = (sql::literal(route), stripe.0, share);
            write!(
                sql,
                "{separator}({route}, {stripe}, {count}, ({CLOCK} + {last}) * {STEP} + {stripe}, 1, ({CLOCK} + {first}) * {STEP} + {stripe}, 0)"
            )
            .unwrap_or_else(|_| unreachable!("a string takes whatever is written"));
        }
        write!(
            sql,
            " on duplicate key update previous_position = position, first_number = number + 1, \
             first_position = greatest(position + {STEP}, values(first_position)), \
             position = greatest(position + {STEP}, values(first_position)) + values(position) - values(first_position), \
             number = number + values(number)"
        )
        .unwrap_or_else(|_| unreachable!("a string takes whatever is written"));
        sql
    }

    /// The statement that says what was taken.
    fn taken(&self) -> String {
        // By the primary key, though it were most of the table: a reader that locks what it reads
        // locks no other stripe.
        format!(
            "select route, stripe, first_number, first_position, @@max_allowed_packet from outbox_stripe force index (primary) where {} limit {}",
            sql::among("route", "stripe", self.shares.keys().map(|(route, stripe)| (*route, stripe.0))),
            // All of them: a session's `sql_select_limit` holds where no limit is named.
            self.shares.len()
        )
    }

    /// The places of the rows, in their order.
    fn places(&self, firsts: &BTreeMap<(Vec<u8>, u16), (i64, i64)>) -> Option<Vec<Place>> {
        let place = |(at, (stripe, nth)): (i64, &((&str, StripeId), i64))| {
            let first = self.shares.get(stripe)?.first;
            let (number, position) = firsts.get(&(stripe.0.as_bytes().to_vec(), stripe.1.0))?;
            Some(Place { stripe: stripe.1, number: number + nth, position: position + (at - first) * STEP })
        };
        (0..).zip(&self.rows).map(place).collect()
    }
}

/// From one position of a stripe to the next, at least: the stripe has the lowest bits.
const STEP: i64 = STRIPES as i64;

/// Numbers taken of the stripes, and the size of a statement that the server takes.
pub(crate) struct Taken {
    pub(crate) places: Vec<Place>,
    pub(crate) max_packet_bytes: usize,
}

macro_rules! require {
    ($autocommit:literal) => {
        concat!(
            "savepoint outbox_transaction; set @outbox_autocommit_is_on = 18446744073709551615 + (",
            $autocommit,
            "); release savepoint outbox_transaction"
        )
    };
}

/// Part of the server's words where autocommit is off: the sum has no room for one more.
pub(crate) const AUTOCOMMIT_IS_OFF: &str = "18446744073709551615 + (";

/// Nothing in SQL tells a program without privileges whether it is in a transaction. But a
/// savepoint that is made outside of one is not made.
///
/// After a deadlock the server rolls the transaction back and goes on without one. The driver does
/// not see it, and whoever goes on in spite of the error would commit a message alone (promise P1).
///
/// With autocommit off that tells nothing: the server begins another transaction with the
/// savepoint. So there it is refused, by a sum that has no room. (A question with two answers where
/// one is asked for takes the server four times as long: it makes a table of them.)
///
/// The savepoint is asked for last: what is lost on the way to it is told too (see
/// [`in_open_transaction`]).
pub(crate) const REQUIRE_USUAL_TRANSACTION: &str = require!("@@autocommit = 0");

/// The same, but for a transaction that was begun with autocommit off by whoever will look, before
/// it is committed, whether it is still that one ([`in_transaction`](crate::line::in_transaction),
/// [`BEGUN`](crate::transactions::BEGUN)).
pub(crate) const REQUIRE_TRANSACTION: &str = require!("@@autocommit = 0 and @outbox_looks is null");

/// Statements of one round trip that are run in an open transaction, or refused. A node of a
/// cluster rolls a transaction back when the commit of another node is in its way, and where that
/// happens between two statements of a round trip it says nothing, and runs the rest without a
/// transaction (seen with MariaDB 10.11). Then the savepoint is gone at the end, and that is told
/// as the conflict that it is; the last statement's own end is always told. A number of a stripe
/// that was taken by then is taken for good, which costs a reader one look.
pub(crate) fn in_open_transaction(statements: &str) -> String {
    format!("{REQUIRE_TRANSACTION}; savepoint {PACKET}; {statements}; release savepoint {PACKET}")
}

/// The savepoint of a round trip. Where it is gone at the end, so is the transaction.
pub(crate) const PACKET: &str = "outbox_round_trip";

/// Takes places in the stripes, in one round trip: nothing of it is run outside of a transaction.
pub(crate) async fn take(
    connection: &mut MySqlConnection,
    taking: &Taking<'_>,
) -> Result<Taken, sqlx::Error> {
    let statements = in_open_transaction(&format!("{}; {}", taking.take(), taking.taken()));
    let rows = sqlx::raw_sql(AssertSqlSafe(statements)).fetch_all(connection).await?;
    let mut firsts = BTreeMap::new();
    let mut max_packet_bytes = 0;
    for row in &rows {
        let route: Vec<u8> = row.try_get_unchecked(0)?;
        let stripe: u16 = row.try_get_unchecked(1)?;
        firsts.insert((route, stripe), (row.try_get_unchecked(2)?, row.try_get_unchecked(3)?));
        max_packet_bytes = packet_bytes(row, 4)?;
    }
    // Each stripe that was written to is read in the same transaction.
    let places = taking.places(&firsts).ok_or(sqlx::Error::RowNotFound)?;
    Ok(Taken { places, max_packet_bytes })
}

/// Returns the size of a statement that the server takes.
pub(crate) fn packet_bytes(row: &MySqlRow, column: usize) -> Result<usize, sqlx::Error> {
    let bytes: i64 = row.try_get_unchecked(column)?;
    Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Routes whose stripes are known to have their rows.
#[derive(Default)]
pub(crate) struct KnownRoutes(Mutex<HashSet<Route>>);

impl KnownRoutes {
    /// Those of these routes that are not known.
    pub(crate) fn unknown<'r>(&self, routes: impl IntoIterator<Item = &'r Route>) -> Vec<Route> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let unknown: BTreeSet<&Route> = routes.into_iter().filter(|route| !known.contains(*route)).collect();
        unknown.into_iter().cloned().collect()
    }

    pub(crate) fn know(&self, route: Route) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(route);
    }
}

/// Sees to it that the stripes of a route have their rows, in a transaction of its own: a writer
/// that found one missing would make it, and two that do would wait for each other. Looks first,
/// without a lock: rows that are there may be locked by writers for as long as these like.
pub(crate) async fn make(connection: &mut MySqlConnection, route: &str) -> Result<(), sqlx::Error> {
    let route = route.as_bytes();
    let made = sqlx::query(sql::STRIPES_MADE).bind(route).fetch_one(&mut *connection).await?;
    if made.try_get_unchecked::<i64, _>(0)? < i64::from(STRIPES) {
        sqlx::query(sql::STRIPES_MAKE).bind(route).bind(route).execute(connection).await?;
    }
    Ok(())
}

/// Returns the marks of the stripes of these buckets.
pub(crate) async fn marks(
    connection: &mut MySqlConnection,
    route: &Route,
    buckets: &BucketSet,
) -> Result<Vec<StripeMark>, sqlx::Error> {
    let rows = sqlx::query(sql::STRIPES).bind(route.as_str().as_bytes()).fetch_all(connection).await?;
    let mut marks = Vec::with_capacity(rows.len());
    for row in &rows {
        let stripe = StripeId(row.try_get_unchecked::<u16, _>(0)?);
        if !buckets.contains(stripe.bucket()) {
            continue;
        }
        marks.push(StripeMark {
            last: Stripe { stripe, number: row.try_get_unchecked(1)? },
            position: Position(row.try_get_unchecked(2)?),
            first_number: row.try_get_unchecked(3)?,
            first_position: Position(row.try_get_unchecked(4)?),
            previous_position: Position(row.try_get_unchecked(5)?),
        });
    }
    Ok(marks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_stripe_follow_one_another_and_each_stripe_is_locked_once_in_one_order() {
        let (a, b) = (StripeId(7), StripeId(3));
        let taking = Taking::new([("r", a), ("r", b), ("r", a), ("q", a)]);
        let order: Vec<_> = taking.shares.keys().copied().collect();
        assert_eq!(order, [("q", a), ("r", b), ("r", a)]);
        let firsts = BTreeMap::from([
            ((b"q".to_vec(), 7), (1, 13 * STEP + 7)),
            ((b"r".to_vec(), 3), (10, 11 * STEP + 3)),
            ((b"r".to_vec(), 7), (5, 10 * STEP + 7)),
        ]);
        let places = taking.places(&firsts).unwrap();
        let place = |stripe, number, position| Place { stripe, number, position };
        assert_eq!(
            places,
            [
                place(a, 5, 10 * STEP + 7),
                place(b, 10, 11 * STEP + 3),
                place(a, 6, 12 * STEP + 7),
                place(a, 1, 13 * STEP + 7)
            ]
        );
        assert!(taking.places(&BTreeMap::new()).is_none());
        let sql = taking.take();
        let at = |part: &str| sql.find(part).unwrap();
        assert!(at("x'71', 7, 1") < at("x'72', 3, 1") && at("x'72', 3, 1") < at("x'72', 7, 2"), "{sql}");
        assert!(taking.taken().contains("(route = x'72' and stripe in (3,7))"));
    }

    /// A transaction that a node of a cluster takes away on the way is known by the absence of the
    /// savepoint: the node does not tell.
    #[test]
    fn the_last_question_is_for_the_savepoint() {
        assert!(REQUIRE_TRANSACTION.ends_with("; release savepoint outbox_transaction"));
        assert!(in_open_transaction("do 1").ends_with("; do 1; release savepoint outbox_round_trip"));
    }

    #[test]
    fn a_route_is_unknown_until_its_stripes_were_made() {
        let known = KnownRoutes::default();
        let (a, b) = (Route::new("a").unwrap(), Route::new("b").unwrap());
        assert_eq!(known.unknown([&b, &a, &b]), [a.clone(), b.clone()]);
        known.know(a.clone());
        assert_eq!(known.unknown([&b, &a]), [b]);
    }
}
