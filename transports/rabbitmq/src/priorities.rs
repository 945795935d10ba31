//! Consumer priorities of a member: they share the queues of a consumer out among its members.
//! Pure.
//!
//! Every member consumes every queue, and RabbitMQ gives a queue with a single active consumer to
//! the highest priority. So each member draws a priority for each queue, and nobody coordinates:
//! who joins outbids the others at its share of the queues, and who leaves gives them to the next
//! highest, which are spread among all others.
//!
//! On request only, and not where [`crate::broker`] knows that a queue can stop: on RabbitMQ 4.3
//! and later.
//!
//! Independent draws would spread 16 queues over two members as 12 + 4 now and then. So a member
//! draws them against each other:
//!
//! - A topic's queues form pairs, and the second of a pair has the mirrored priority of the first.
//!   Of two members each wins one of a pair, whatever they draw.
//! - The priorities of the pairs are spread evenly over the range, in random order: no member bids
//!   high everywhere. That holds within each topic, and for all of them together.

use fastrand::Rng;

/// Priorities from 1 to this. Consumers of other programs have 0 unless they say otherwise.
const HIGHEST: u32 = 1 << 30;

/// Priority of a consumer that is to receive nothing while another one is there.
pub(crate) const LOWEST: i32 = i32::MIN;

/// Consumer priorities of a member, in the order of its queues; none if the first member that
/// subscribes is to keep all queues.
#[derive(Clone, Debug, Default)]
pub(crate) struct Priorities(Vec<i32>);

impl Priorities {
    /// Draws the priorities of a member that consumes so many topics of so many partitions each.
    pub(crate) fn draw(random: &mut Rng, topics: usize, partitions: usize) -> Self {
        // Topics of one queue each form pairs with each other.
        let (groups, size) = if partitions == 1 { (1, topics) } else { (topics, partitions) };
        let pairs = size.div_ceil(2);
        // For each topic: the step of each pair. For each step: the place of each topic on it.
        let steps: Vec<_> = (0..groups).map(|_| shuffled(random, pairs)).collect();
        let places: Vec<_> = (0..pairs).map(|_| shuffled(random, groups)).collect();
        let width = HIGHEST / u32::try_from(groups * pairs).unwrap_or(HIGHEST).max(1);
        let mut priorities = Vec::with_capacity(groups * size);
        for (group, steps) in steps.iter().enumerate() {
            for (pair, step) in steps.iter().enumerate() {
                let place = places.get(*step).and_then(|places| places.get(group)).copied();
                let place = step * groups + place.unwrap_or_default();
                let low = width.saturating_mul(u32::try_from(place).unwrap_or(u32::MAX));
                let first = low.saturating_add(random.u32(0..width.max(1))).min(HIGHEST - 1);
                let both = [first + 1, HIGHEST - first];
                let of_pair = both.into_iter().take(size - pair * 2);
                priorities.extend(of_pair.map(|it| i32::try_from(it).unwrap_or(i32::MAX)));
            }
        }
        Self(priorities)
    }

    /// Returns the priority at a queue. None: it says none.
    pub(crate) fn at(&self, queue: usize) -> Option<i32> {
        self.0.get(queue).copied()
    }
}

fn shuffled(random: &mut Rng, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    random.shuffle(&mut order);
    order
}

#[cfg(test)]
#[path = "priorities_tests.rs"]
mod tests;
