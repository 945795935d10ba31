use super::*;

const SEEDS: u64 = 2_000;

/// Returns the number of queues that each of so many members has, for each topic.
fn shares(seed: u64, members: usize, topics: usize, partitions: usize) -> Vec<Vec<usize>> {
    let mut random = Rng::with_seed(seed);
    let members: Vec<_> = (0..members).map(|_| Priorities::draw(&mut random, topics, partitions).0).collect();
    assert!(members.iter().all(|it| it.len() == topics * partitions));
    let mut shares = vec![vec![0; members.len()]; topics];
    for queue in 0..topics * partitions {
        let highest = (0..members.len()).max_by_key(|member| members[*member][queue]).unwrap_or_default();
        shares[queue / partitions][highest] += 1;
    }
    shares
}

fn totals(shares: &[Vec<usize>]) -> Vec<usize> {
    (0..shares[0].len()).map(|member| shares.iter().map(|it| it[member]).sum()).collect()
}

#[test]
fn two_members_have_half_of_each_topic() {
    for seed in 0..SEEDS {
        for (topics, partitions) in [(1, 2), (1, 4), (1, 16), (3, 4), (2, 32), (1, 256)] {
            for of_topic in shares(seed, 2, topics, partitions) {
                assert_eq!(of_topic, [partitions / 2; 2], "seed {seed}, {topics} topics of {partitions}");
            }
        }
        // One queue is left over, and belongs to one of them.
        for (topics, partitions) in [(1, 5), (7, 1)] {
            let mut of_members = totals(&shares(seed, 2, topics, partitions));
            of_members.sort_unstable();
            let queues = topics * partitions;
            assert_eq!(of_members, [queues / 2, queues / 2 + 1], "seed {seed}");
        }
        assert_eq!(totals(&shares(seed, 2, 8, 1)), [4; 2], "seed {seed}: topics of one queue each");
    }
}

/// Of more than two, and so too of those that are left when one leaves.
#[test]
fn shares_of_several_members_spread_less_than_by_chance() {
    for (members, topics, partitions) in
        [(3, 1, 16), (3, 4, 8), (4, 1, 16), (4, 1, 64), (5, 1, 32), (3, 12, 1)]
    {
        let queues = topics * partitions;
        let (even, mut squares, mut most) = (queues as f64 / members as f64, 0.0, 0);
        for seed in 0..SEEDS {
            let of_members = totals(&shares(seed, members, topics, partitions));
            squares += of_members.iter().map(|it| (*it as f64 - even).powi(2)).sum::<f64>();
            most = most.max(of_members.into_iter().max().unwrap_or_default());
        }
        let variance = squares / (SEEDS as f64 * members as f64);
        let by_chance = even * (1.0 - 1.0 / members as f64);
        let about = format!(
            "{queues} queues, {members} members: variance {variance:.2}, by chance {by_chance:.2}; most {most}"
        );
        assert!(variance < 0.6 * by_chance, "{about}");
        assert!(most as f64 <= even + 3.0 * by_chance.sqrt(), "{about}");
        println!("{about}");
    }
}

/// Higher than consumers that say nothing: of another program, or an older one of ours.
#[test]
fn priorities_are_positive_and_differ() {
    for seed in 0..SEEDS {
        let mut random = Rng::with_seed(seed);
        let (mine, others) = (Priorities::draw(&mut random, 3, 16), Priorities::draw(&mut random, 3, 16));
        let of_each = mine.0.iter().zip(&others.0);
        assert!(of_each.clone().all(|(mine, other)| mine != other), "seed {seed}");
        assert!(of_each.flat_map(|(mine, other)| [*mine, *other]).all(|it| it > 0), "seed {seed}");
    }
    assert_eq!(Priorities::default().at(0), None);
}
