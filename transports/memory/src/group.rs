//! A consumer of one topic: its partitions, its members, and the assignment between them.
//!
//! Promises: each partition has at most one owner; the load is shared evenly; as few partitions
//! move as possible, because each move redelivers unacknowledged messages.

use std::collections::BTreeMap;

use outbox_contract::backend::Bucket;
use outbox_contract::backend::flow::Load;

use crate::broker::MemberId;
use crate::partition::{Entry, Partition};

/// State of a member with respect to its partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Takes new messages.
    Taking,
    /// Finishes its messages. It keeps its partitions until it leaves: if one moved earlier,
    /// messages that it is about to acknowledge would be redelivered.
    Draining,
}

/// The move of a partition from one member to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) partition: u32,
    pub(crate) from: Option<MemberId>,
    pub(crate) to: Option<MemberId>,
}

#[derive(Debug)]
pub(crate) struct Group {
    partitions: Vec<Partition>,
    members: BTreeMap<MemberId, Standing>,
    /// Unacknowledged load of all partitions together.
    load: Load,
}

impl Group {
    pub(crate) fn new(partitions: usize) -> Self {
        Self {
            partitions: (0..partitions).map(|_| Partition::default()).collect(),
            members: BTreeMap::new(),
            load: Load::default(),
        }
    }

    pub(crate) const fn load(&self) -> Load {
        self.load
    }

    /// Returns true if a member is taking messages.
    pub(crate) fn has_takers(&self) -> bool {
        self.takers().next().is_some()
    }

    /// Returns the partition of a key, and its number. The bucket is a hash of topic and key that
    /// never changes.
    pub(crate) fn partition_of(&mut self, bucket: Bucket) -> (u32, &mut Partition) {
        let number = usize::from(bucket.0) % self.partitions.len();
        (u32::try_from(number).unwrap_or(u32::MAX), &mut self.partitions[number])
    }

    pub(crate) fn partition(&mut self, number: u32) -> Option<&mut Partition> {
        self.partitions.get_mut(usize::try_from(number).ok()?)
    }

    /// Returns the partitions of a member, by number, each with the number of its unacknowledged
    /// messages.
    pub(crate) fn lags(&self, member: MemberId) -> impl Iterator<Item = (u32, u64)> {
        let owned = (0..).zip(&self.partitions).filter(move |(_, partition)| partition.owner == Some(member));
        owned.map(|(number, partition)| (number, u64::try_from(partition.len()).unwrap_or(u64::MAX)))
    }

    /// Adds a message after all others of its partition; returns the numbers of both, and the
    /// owner.
    pub(crate) fn push(&mut self, entry: Entry) -> (u32, u64, &Entry, Option<MemberId>) {
        self.load.add(entry.load());
        let (partition, of) = self.partition_of(entry.stored.bucket);
        let owner = of.owner;
        let (number, entry) = of.push(entry);
        (partition, number, entry, owner)
    }

    /// Removes a message that the owner of its partition finished.
    pub(crate) fn remove(&mut self, partition: u32, number: u64) -> Option<Entry> {
        let entry = self.partition(partition)?.remove(number)?;
        self.load.remove(entry.load());
        Some(entry)
    }

    pub(crate) fn join(&mut self, member: MemberId) -> Vec<Move> {
        self.members.insert(member, Standing::Taking);
        self.share_out()
    }

    pub(crate) fn drain(&mut self, member: MemberId) {
        if let Some(standing) = self.members.get_mut(&member) {
            *standing = Standing::Draining;
        }
    }

    pub(crate) fn leave(&mut self, member: MemberId) -> Vec<Move> {
        self.members.remove(&member);
        self.share_out()
    }

    fn takers(&self) -> impl Iterator<Item = MemberId> {
        self.members.iter().filter(|(_, standing)| **standing == Standing::Taking).map(|(member, _)| *member)
    }

    /// Assigns every partition that no draining member keeps to a taker, the same number to each
    /// taker or one more.
    fn share_out(&mut self) -> Vec<Move> {
        let takers: Vec<MemberId> = self.takers().collect();
        let kept = |owner: Option<MemberId>| {
            owner.is_some_and(|owner| self.members.get(&owner) == Some(&Standing::Draining))
        };
        let to_share = self.partitions.iter().filter(|partition| !kept(partition.owner)).count();
        // Number of further partitions for each taker; the earliest members take the remainder.
        let mut open: BTreeMap<MemberId, usize> = takers
            .iter()
            .enumerate()
            .map(|(rank, taker)| {
                let share = to_share / takers.len() + usize::from(rank < to_share % takers.len());
                (*taker, share)
            })
            .collect();

        let mut homeless = Vec::new();
        for (number, partition) in self.partitions.iter().enumerate() {
            if kept(partition.owner) {
                continue;
            }
            match partition.owner.and_then(|owner| open.get_mut(&owner)) {
                Some(left) if *left > 0 => *left -= 1,
                _ => homeless.push(number),
            }
        }

        let mut seats = open.into_iter().flat_map(|(taker, left)| std::iter::repeat_n(taker, left));
        let mut moves = Vec::new();
        for number in homeless {
            let (from, to) = (self.partitions[number].owner, seats.next());
            if from == to {
                continue;
            }
            self.partitions[number].owner = to;
            let partition = u32::try_from(number).unwrap_or(u32::MAX);
            moves.push(Move { partition, from, to });
        }
        moves
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(group: &Group, members: &[MemberId]) -> Vec<usize> {
        let owned = |member| group.partitions.iter().filter(|it| it.owner == Some(member)).count();
        members.iter().map(|member| owned(*member)).collect()
    }

    const MEMBERS: [MemberId; 3] = [MemberId(1), MemberId(2), MemberId(3)];

    #[test]
    fn partitions_are_shared_evenly_and_few_of_them_move() {
        let mut group = Group::new(8);
        assert_eq!(group.join(MEMBERS[0]).len(), 8);
        assert_eq!(group.join(MEMBERS[1]).len(), 4);
        assert_eq!(group.join(MEMBERS[2]).len(), 2);
        assert_eq!(shares(&group, &MEMBERS), [3, 3, 2]);
        assert_eq!(group.leave(MEMBERS[0]).len(), 3);
        assert_eq!(shares(&group, &MEMBERS), [0, 4, 4]);
    }

    #[test]
    fn a_draining_member_keeps_its_partitions_until_it_leaves() {
        let mut group = Group::new(4);
        group.join(MEMBERS[0]);
        group.drain(MEMBERS[0]);
        assert!(!group.has_takers());
        assert!(group.join(MEMBERS[1]).is_empty(), "nothing moves while the first one drains");
        assert_eq!(group.leave(MEMBERS[0]).len(), 4);
        assert_eq!(shares(&group, &MEMBERS), [0, 4, 0]);
    }

    #[test]
    fn the_last_one_to_leave_leaves_the_partitions_to_nobody() {
        let mut group = Group::new(2);
        group.join(MEMBERS[0]);
        let moves = group.leave(MEMBERS[0]);
        assert!(moves.iter().all(|moved| moved.from == Some(MEMBERS[0]) && moved.to.is_none()));
        assert_eq!(moves.len(), 2);
        assert!(!group.has_takers());
    }

    #[test]
    fn more_members_than_partitions_leave_some_of_them_idle() {
        let mut group = Group::new(2);
        MEMBERS.iter().for_each(|member| drop(group.join(*member)));
        assert_eq!(shares(&group, &MEMBERS), [1, 1, 0]);
    }
}
