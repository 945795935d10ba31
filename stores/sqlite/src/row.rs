//! Rows: from columns to messages.

use outbox_store_sql::{Column, MessageRow};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

/// A row with the columns of a message, by name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Columns<'r>(&'r SqliteRow);

impl<'r> MessageRow<'r> for Columns<'r> {
    fn bytes(self, column: Column) -> Option<&'r [u8]> {
        self.0.try_get_unchecked::<Option<&'r [u8]>, _>(column.name()).ok().flatten()
    }

    fn integer(self, column: Column) -> i64 {
        self.0.try_get_unchecked(column.name()).unwrap_or_default()
    }
}

pub(crate) type Raw<'r> = outbox_store_sql::Raw<'r, Columns<'r>>;

/// Returns the message, or what there is of one, in a row.
pub(crate) const fn raw(row: &SqliteRow) -> Raw<'_> {
    Raw::new(Columns(row))
}

/// Like [`raw`], of a row whose headers and payload were read separately.
pub(crate) const fn raw_with_content<'r>(
    row: &'r SqliteRow,
    headers: &'r [u8],
    payload: &'r [u8],
) -> Raw<'r> {
    Raw::with_content(Columns(row), headers, payload)
}
