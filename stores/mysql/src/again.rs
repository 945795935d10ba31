//! Appending rows that are in a side table: dead letters, delivered messages, scheduled ones. The
//! database copies them; only their places come from here.

use std::fmt::Write;

use outbox_contract::backend::StripeId;
use sqlx::Row;
use sqlx::mysql::{MySqlConnection, MySqlRow};

use crate::browse::text;
use crate::sql;
use crate::stripes::{Place, Taking, take};

/// A row of a side table that is appended.
#[derive(Clone)]
pub(crate) struct Chosen {
    pub(crate) entry: i64,
    pub(crate) route: String,
    pub(crate) stripe: StripeId,
}

/// Columns that are read of rows to choose them.
pub(crate) const CHOSEN: &str = "t.entry, t.position, t.route, t.topic, t.order_key";

/// Rows that were chosen, with what `read` takes from each, in the order in which they stood in
/// their keys.
pub(crate) fn chosen<T>(
    rows: &[MySqlRow],
    read: impl Fn(&MySqlRow) -> Result<T, sqlx::Error>,
) -> Result<Vec<(Chosen, T)>, sqlx::Error> {
    let mut chosen = Vec::with_capacity(rows.len());
    for row in rows {
        let position: i64 = row.try_get_unchecked(1)?;
        let entry = row.try_get_unchecked(0)?;
        // Computed again: a wrong stripe is one of the things that a message can have died of.
        let stripe = StripeId::of(&text(row, 3)?, &text(row, 4)?);
        chosen.push((position, (Chosen { entry, route: text(row, 2)?, stripe }, read(row)?)));
    }
    chosen.sort_by_key(|(position, (row, _))| (*position, row.entry));
    Ok(chosen.into_iter().map(|(_, row)| row).collect())
}

/// Appends rows in the order given, in the transaction that is open, and removes them from their
/// table where there is a statement for it.
pub(crate) async fn append_again(
    connection: &mut MySqlConnection,
    chosen: &[Chosen],
    append: &'static str,
    remove: Option<&'static str>,
) -> Result<u64, sqlx::Error> {
    if chosen.is_empty() {
        return Ok(0);
    }
    let taking = Taking::new(chosen.iter().map(|row| (row.route.as_str(), row.stripe)));
    let taken = take(connection, &taking).await?;
    let appended = sqlx::query(append).bind(places(chosen, &taken.places)).execute(&mut *connection).await?;
    if let Some(remove) = remove {
        let entries = sql::numbers(chosen.iter().map(|row| row.entry));
        sqlx::query(remove).bind(entries).execute(connection).await?;
    }
    Ok(appended.rows_affected())
}

/// Rows with their places as a JSON array of arrays, for `json_table`.
fn places(chosen: &[Chosen], places: &[Place]) -> String {
    let mut json = String::from("[");
    for (row, place) in chosen.iter().zip(places) {
        let separator = if json.len() == 1 { "" } else { "," };
        write!(json, "{separator}[{},{},{},{}]", row.entry, place.stripe.0, place.number, place.position)
            .unwrap_or_else(|_| unreachable!("a string takes whatever is written"));
    }
    json.push(']');
    json
}
