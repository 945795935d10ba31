//! Stripes: how databases in which several transactions write at once, and which can't say who is writing, number what they commit.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::bucket::Bucket;
use crate::id::Position;

/// How many stripes a route has. A constant of the wire format: tables carry their numbers.
pub const STRIPES: u16 = 1_024;

/// A share of all keys whose writers stand in line, on stores that order by [`Ordering::Stripes`](crate::fetch::Ordering::Stripes).
///
/// It is the first ten bits of the hash whose first eight are the [`Bucket`]: each bucket has four stripes, and none is shared by two.
///
/// ```
/// use outbox_contract::{Bucket, StripeId};
///
/// let stripe = StripeId::of("orders", "order-1");
/// assert_eq!(stripe.bucket(), Bucket::of("orders", "order-1"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StripeId(pub u16);

impl StripeId {
    /// The stripe of a topic and key. A message without a key takes its own identifier (hyphenated, lower case) for one.
    #[must_use]
    pub fn of(topic: &str, key: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(topic.as_bytes());
        hash.update([0]);
        hash.update(key.as_bytes());
        let hash = hash.finalize();
        Self(u16::from_be_bytes([hash[0], hash[1]]) >> 6)
    }

    /// The bucket that the stripe belongs to.
    #[must_use]
    pub fn bucket(self) -> Bucket {
        Bucket(u8::try_from(self.0 >> 2).unwrap_or(u8::MAX))
    }
}

/// A row's number within the stripe of its key. Committed numbers of a stripe and route have no gaps: a number is taken under a lock on the
/// stripe that is held until the transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stripe {
    /// Which stripe.
    pub stripe: StripeId,
    /// Which row of it, from 1.
    pub number: i64,
}

/// How far a stripe was committed when its row was read.
///
/// Whatever is committed in this stripe later has a higher number *and* a higher position: a position, too, is taken under the lock, and is
/// above the last one of the stripe, whatever the clock says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeMark {
    /// The last row that was committed.
    pub last: Stripe,
    /// Where it stands, or stood.
    pub position: Position,
    /// The number of the first row of the append that wrote the last one: `last.number` when that appended one row.
    pub first_number: i64,
    /// Where that first row stands, or stood.
    pub first_position: Position,
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
