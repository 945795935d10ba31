//! Rows: from columns to messages.

use outbox_store_sql::{Column, MessageRow};
use sqlx::Row;
use sqlx::postgres::PgRow;

/// A row with the columns of a message, by index: a look-up by name would cost one for each column
/// of each row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Columns<'r>(&'r PgRow);

impl<'r> MessageRow<'r> for Columns<'r> {
    fn bytes(self, column: Column) -> Option<&'r [u8]> {
        self.0.try_get_unchecked::<Option<&'r [u8]>, _>(column as usize).ok().flatten()
    }

    fn integer(self, column: Column) -> i64 {
        self.0.try_get_unchecked(column as usize).unwrap_or_default()
    }
}

pub(crate) type Raw<'r> = outbox_store_sql::Raw<'r, Columns<'r>>;

/// Returns the message, or what there is of one, in a row.
pub(crate) const fn raw(row: &PgRow) -> Raw<'_> {
    Raw::new(Columns(row))
}

/// Like [`raw`], of a row whose headers and payload were read separately.
pub(crate) const fn raw_with_content<'r>(row: &'r PgRow, headers: &'r [u8], payload: &'r [u8]) -> Raw<'r> {
    Raw::with_content(Columns(row), headers, payload)
}
