//! Rows: from columns to messages.

use outbox_contract::backend::{Stripe, StripeId};
use outbox_store_sql::{Column, MessageRow};
use sqlx::Row;
use sqlx::mysql::MySqlRow;

/// A row with the columns of a message, by index: a look-up by name would cost one for each column
/// of each row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Columns<'r>(&'r MySqlRow);

impl<'r> MessageRow<'r> for Columns<'r> {
    fn bytes(self, column: Column) -> Option<&'r [u8]> {
        self.0.try_get_unchecked::<Option<&'r [u8]>, _>(index(column)).ok().flatten()
    }

    fn integer(self, column: Column) -> i64 {
        self.0.try_get_unchecked(index(column)).unwrap_or_default()
    }

    fn stripe(self) -> Option<Stripe> {
        let stripe = StripeId(u16::try_from(self.integer(Column::Bucket)).unwrap_or_default());
        Some(Stripe { stripe, number: self.0.try_get_unchecked(NUMBER).unwrap_or_default() })
    }
}

pub(crate) type Raw<'r> = outbox_store_sql::Raw<'r, Columns<'r>>;

/// Index of the number in the stripe, behind the stripe, which takes the place of a bucket.
const NUMBER: usize = Column::Bucket as usize + 1;

/// Number of these columns: a statement's additional columns follow them.
pub(crate) const COUNT: usize = Column::COUNT + 1;

/// Returns the index of a column in every statement that reads messages.
pub(crate) const fn index(column: Column) -> usize {
    let at = column as usize;
    if at < NUMBER { at } else { at + 1 }
}

/// Returns the message, or what there is of one, in a row.
pub(crate) const fn raw(row: &MySqlRow) -> Raw<'_> {
    Raw::new(Columns(row))
}

/// Like [`raw`], of a row whose headers and payload were read separately.
pub(crate) const fn raw_with_content<'r>(row: &'r MySqlRow, headers: &'r [u8], payload: &'r [u8]) -> Raw<'r> {
    Raw::with_content(Columns(row), headers, payload)
}
