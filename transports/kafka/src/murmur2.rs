//! The hash by which Kafka's Java client gives keys to partitions. Everything that writes a topic
//! must use the same one, or a key is in two partitions and has no order.

/// Returns the partition of a key, of so many. `partitions` must be positive; 0 and less count as
/// 1.
///
/// Partitioner of the Java client, and of librdkafka as `murmur2_random`.
pub(crate) fn partition_of(key: &[u8], partitions: i32) -> i32 {
    // The sign bit is dropped, as the Java client does: its integers have one.
    let positive = murmur2(key) & 0x7fff_ffff;
    let partition = positive % partitions.max(1).unsigned_abs();
    i32::try_from(partition).unwrap_or_default()
}

/// MurmurHash2, 32 bits, with the seed of the Java client.
fn murmur2(data: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    // The length goes in as the 32 bits that it is in Java; no key has more.
    let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
    let mut hash = SEED ^ length;
    let (words, rest) = data.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !rest.is_empty() {
        for (at, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * at);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_java_client() {
        // Results of org.apache.kafka.common.utils.Utils.murmur2.
        let known: [(&str, i32); 7] = [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
            ("", 275_646_681),
        ];
        for (key, hash) in known {
            assert_eq!(murmur2(key.as_bytes()), u32::from_ne_bytes(hash.to_ne_bytes()), "{key:?}");
        }
    }

    #[test]
    fn a_partition_is_one_of_those_that_there_are() {
        for partitions in [1, 3, 7, 50] {
            for key in 0..200_u32 {
                let partition = partition_of(&key.to_le_bytes(), partitions);
                assert!((0..partitions).contains(&partition), "{partition} of {partitions}");
            }
        }
    }
}
