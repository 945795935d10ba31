//! Stripes: sequence shards. They number commits on databases in which several transactions write
//! at once, and which can't list their writers.

use serde::{Deserialize, Serialize};

use crate::backend::{Bucket, Position, key_hash};

/// Number of stripes of a route. A constant of the wire format: tables carry their numbers.
pub const STRIPES: u16 = 1_024;

/// A share of all keys whose writers queue for one lock, on stores that order by
/// [`Ordering::Stripes`](crate::backend::Ordering::Stripes).
///
/// It is the first ten bits of the hash whose first eight bits are the [`Bucket`]: each bucket has
/// four stripes, and two buckets never share one.
///
/// ```
/// # extern crate outbox_contract as outbox;
/// use outbox::backend::{Bucket, StripeId};
///
/// let stripe = StripeId::of("orders", "order-1");
/// assert_eq!(stripe.bucket(), Bucket::of("orders", "order-1"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StripeId(pub u16);

impl StripeId {
    /// Returns the stripe of a topic and key. A message without a key uses its own identifier
    /// (hyphenated, lower case) as the key.
    #[must_use]
    pub fn of(topic: &str, key: &str) -> Self {
        let [first, second, ..] = key_hash(topic, key);
        Self(u16::from_be_bytes([first, second]) >> 6)
    }

    /// Returns the bucket to which the stripe belongs.
    #[must_use]
    pub fn bucket(self) -> Bucket {
        Bucket(u8::try_from(self.0 >> 2).unwrap_or(u8::MAX))
    }
}

/// Number of a row within the stripe of its key. Committed numbers of a stripe and route have no
/// gaps: a writer takes a number under a lock on the stripe, held until the transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stripe {
    /// The stripe.
    pub stripe: StripeId,
    /// Number of the row within it, from 1.
    pub number: i64,
}

/// Committed mark of a stripe, at the time its row was read.
///
/// Every later commit in this stripe has a higher number *and* a higher position: the writer also
/// takes the position under the lock, above the last one of the stripe, whatever the clock shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeMark {
    /// The last committed row.
    pub last: Stripe,
    /// Current or former position of that row.
    pub position: Position,
    /// Number of the first row of the append that wrote the last one: `last.number` if that append
    /// wrote one row.
    pub first_number: i64,
    /// Current or former position of that first row.
    pub first_position: Position,
    /// Position that this mark had before that append. A reader that has seen another one in its
    /// place knows that the counters of the stripe went back in between.
    pub previous_position: Position,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stripe_is_in_the_bucket_of_its_keys() {
        let mut seen = std::collections::BTreeSet::new();
        for number in 0..20_000 {
            let key = number.to_string();
            let stripe = StripeId::of("orders", &key);
            assert!(stripe.0 < STRIPES);
            assert_eq!(stripe.bucket(), Bucket::of("orders", &key));
            seen.insert(stripe);
        }
        assert_eq!(seen.len(), usize::from(STRIPES), "every stripe is used");
    }
}
