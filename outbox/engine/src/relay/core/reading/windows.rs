//! Wide read windows: the main one, and the gaps of topics and buckets. Windows of single keys are
//! in the state of the key.

use std::collections::BTreeMap;

use outbox_contract::backend::{Bucket, BucketSet, Ordering, Position, Scope, Writers};
use outbox_contract::{KeyId, Topic};

use super::marks::Marks;
use super::window::Window;

/// Part of what a relay owns that is read apart from the rest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::relay::core) enum Part {
    /// One topic.
    Topic(Topic),
    /// Buckets that were taken over, by the number of the gap, which holds their set.
    Buckets(u64),
}

/// All wide windows. A key without a window of its own is governed by exactly one of them: its
/// topic's, else its bucket's, else the main one.
#[derive(Debug)]
pub(in crate::relay::core) struct Windows {
    pub(super) ordering: Ordering,
    pub(super) main: Window,
    // Ordered, so that a run can be replayed: the round-robin follows this order.
    gaps: BTreeMap<Part, Gap>,
    /// Latest committed marks.
    pub(super) marks: Marks,
    turn: Option<Part>,
}

/// Part that is read through a window of its own.
#[derive(Clone, Debug)]
struct Gap {
    window: Window,
    buckets: BucketSet,
    /// True while the topic is unavailable or paused, and is not read.
    is_closed: bool,
}

impl Windows {
    pub(super) fn new(ordering: Ordering) -> Self {
        Self {
            ordering,
            main: Window::at(Position::START),
            gaps: BTreeMap::new(),
            marks: Marks::default(),
            turn: None,
        }
    }

    /// Returns the window of a part, or the main one for `None`.
    pub(super) fn window(&self, part: Option<&Part>) -> &Window {
        part.and_then(|part| self.gaps.get(part)).map_or(&self.main, |gap| &gap.window)
    }

    pub(super) fn window_mut(&mut self, part: Option<&Part>) -> &mut Window {
        part.and_then(|part| self.gaps.get_mut(part)).map_or(&mut self.main, |gap| &mut gap.window)
    }

    #[cfg(any(test, feature = "_simulation"))]
    pub(super) fn all(&self) -> impl Iterator<Item = &Window> {
        self.gaps.values().map(|gap| &gap.window).chain([&self.main])
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Window> {
        self.gaps.values_mut().map(|gap| &mut gap.window).chain([&mut self.main])
    }

    /// Returns where the next fetch of these buckets through the window of this part begins.
    pub(super) fn start(&self, part: Option<&Part>, buckets: &BucketSet) -> Position {
        let window = self.window(part);
        if self.ordering != Ordering::Stripes {
            return window.start(self.ordering);
        }
        let news = self.marks.news(&window.seen, buckets, None);
        news.map_or(window.cursor, |news| news.min(window.cursor))
    }

    /// Processes committed marks. `split`: read buckets with late commits apart.
    pub(super) fn committed(&mut self, marks: Marks, owned: BucketSet, split: bool) {
        self.marks = marks;
        if split {
            self.split_late(owned);
        }
        self.main.more |= self.marks.news(&self.main.seen, &self.main_buckets(owned), None).is_some();
    }

    /// Gives each bucket with late commits a window of its own. Then only that bucket's fetches
    /// scan the range between the late commits and the cursor again, and the others need not wait.
    /// Without this, some shard may be late at each query.
    fn split_late(&mut self, owned: BucketSet) {
        let wide =
            self.gaps.iter().filter(|(part, gap)| matches!(part, Part::Buckets(_)) && gap.buckets.len() > 1);
        let wide: Vec<Option<Part>> = wide.map(|(part, _)| Some(part.clone())).chain([None]).collect();
        for part in wide {
            let buckets = self.buckets(part.as_ref(), owned);
            let window = self.window(part.as_ref()).narrowed(Position::END);
            let late = self.marks.late(&window.seen, &buckets, window.cursor);
            for bucket in late.iter() {
                let buckets = [bucket].into_iter().collect();
                let gap = Gap { window: window.clone(), buckets, is_closed: false };
                self.gaps.insert(self.next_buckets(), gap);
            }
            if let Some(gap) = part.as_ref().and_then(|part| self.gaps.get_mut(part)) {
                gap.buckets = gap.buckets.without(&late);
            }
        }
        self.gaps.retain(|part, gap| !matches!(part, Part::Buckets(_)) || !gap.buckets.is_empty());
    }

    fn next_buckets(&self) -> Part {
        let numbers = self.gaps.keys().filter_map(|part| match part {
            Part::Buckets(number) => Some(number + 1),
            Part::Topic(_) => None,
        });
        Part::Buckets(numbers.max().unwrap_or(0))
    }

    /// Returns the keys of a gap that has caught up to the next wider window. The gap has seen what
    /// that window has passed over: this fetch began after the horizon or the marks of that window
    /// were established.
    pub(super) fn end_gap(&mut self, part: &Part, marks: &Marks) {
        if let (Part::Buckets(_), Some(gap)) = (part, self.gaps.remove(part)) {
            // The main window has never seen the shards of these buckets.
            self.main.seen = self.main.seen.with(marks, &gap.buckets);
        }
        self.main.more = true;
    }

    /// Returns the position at or below which nothing can appear in any wide window.
    pub(super) fn floor(&self) -> Position {
        let gaps = self.gaps.values().map(|gap| gap.window.floor(self.ordering));
        gaps.min().unwrap_or(Position::END).min(self.main.floor(self.ordering))
    }

    /// Returns true if a fetch would begin at a base.
    pub(super) fn has_base(&self, part: Option<&Part>) -> bool {
        self.window(part).base.is_some()
    }

    /// Tells all windows the open transactions, and whether the horizon moved.
    pub(super) fn hear(&mut self, writers: &Writers, moved: bool) {
        for window in self.all_mut() {
            window.hear(writers);
            window.more |= moved;
        }
    }

    /// Starts reading from this position, for the first buckets.
    pub(super) fn begin(&mut self, low_water: Position) {
        self.main = Window::at(low_water);
        self.gaps.values_mut().for_each(|gap| gap.window.lower(low_water));
    }

    /// Forgets buckets that are no longer owned.
    pub(super) fn lose(&mut self, buckets: BucketSet) {
        self.gaps.retain(|part, gap| match part {
            Part::Topic(_) => true,
            Part::Buckets(_) => {
                gap.buckets = gap.buckets.without(&buckets);
                !gap.buckets.is_empty()
            }
        });
    }

    /// Closes a topic. `of_keys`: lowest cursor of the windows of its keys. The topic's window
    /// replaces those, as they would continue to send the topic's messages.
    pub(super) fn close_topic(&mut self, topic: &Topic, of_keys: Option<Position>) {
        let part = Part::Topic(topic.clone());
        let apart = self.gaps.remove(&part).map(|gap| gap.window);
        let was_apart = apart.is_some();
        let mut window = apart.unwrap_or_else(|| self.main.narrowed(Position::END));
        if !was_apart {
            for gap in
                self.gaps.iter().filter(|(part, _)| matches!(part, Part::Buckets(_))).map(|(_, gap)| gap)
            {
                window.join(&gap.window, self.ordering);
            }
        }
        if let Some(cursor) = of_keys {
            window.lower(cursor);
        }
        self.gaps.insert(part, Gap { window, buckets: BucketSet::ALL, is_closed: true });
    }

    pub(super) fn open_topic(&mut self, topic: &Topic) {
        if let Some(gap) = self.gaps.get_mut(&Part::Topic(topic.clone())) {
            gap.is_closed = false;
            gap.window.more = true;
        }
    }

    /// Returns true if a topic is read apart from the main window: it is closed, or catching up.
    pub(in crate::relay::core) fn is_apart(&self, topic: &Topic) -> bool {
        !self.gaps.is_empty() && self.gaps.contains_key(&Part::Topic(topic.clone()))
    }

    /// Returns true if a topic is closed.
    pub(super) fn is_closed(&self, topic: &Topic) -> bool {
        !self.gaps.is_empty() && self.gaps.get(&Part::Topic(topic.clone())).is_some_and(|gap| gap.is_closed)
    }

    /// Returns the window of a closed topic, which reads all its keys.
    pub(super) fn closed_topic(&mut self, topic: &Topic) -> Option<&mut Window> {
        if self.gaps.is_empty() {
            return None;
        }
        let gap = self.gaps.get_mut(&Part::Topic(topic.clone()))?;
        gap.is_closed.then_some(&mut gap.window)
    }

    /// Returns the wide window that governs a key; `None` is the main one.
    pub(super) fn governor(&self, key: &KeyId, bucket: Bucket) -> Option<Part> {
        if self.gaps.is_empty() {
            return None;
        }
        let topic = Part::Topic(key.topic.clone());
        if self.gaps.contains_key(&topic) {
            return Some(topic);
        }
        let mut buckets = self.gaps.iter().filter(|(part, _)| matches!(part, Part::Buckets(_)));
        buckets.find(|(_, gap)| gap.buckets.contains(bucket)).map(|(part, _)| part.clone())
    }

    /// Makes the wide window of a topic's keys read again, because the window of one of them has
    /// ended.
    pub(super) fn look_again(&mut self, topic: &Topic) {
        let part = Part::Topic(topic.clone());
        if let Some(gap) = self.gaps.get_mut(&part).filter(|gap| !gap.is_closed) {
            gap.window.more = true;
        }
        self.main.more = true;
    }

    /// Makes the governing wide windows read a row again that no window of its key need cover.
    pub(super) fn read_row_again(&mut self, topic: &Topic, bucket: Bucket, after: Position) {
        if let Some(gap) = self.gaps.get_mut(&Part::Topic(topic.clone())) {
            gap.window.lower(after);
        }
        let of_bucket = |(part, gap): &(&Part, &mut Gap)| {
            matches!(part, Part::Buckets(_)) && gap.buckets.contains(bucket)
        };
        let wide = self.gaps.iter_mut().find(of_bucket).map(|(_, gap)| &mut gap.window);
        wide.unwrap_or(&mut self.main).lower(after);
    }

    /// Gives buckets a window of their own, from this position on.
    pub(super) fn read_buckets_again(&mut self, buckets: BucketSet, after: Position) {
        let mut window = Window::at(after);
        for (part, gap) in &mut self.gaps {
            match part {
                Part::Buckets(_) if !gap.buckets.intersection(&buckets).is_empty() => {
                    gap.buckets = gap.buckets.without(&buckets);
                    window.join(&gap.window, self.ordering);
                }
                Part::Buckets(_) => {}
                Part::Topic(_) => gap.window.lower(after),
            }
        }
        self.gaps.retain(|part, gap| !matches!(part, Part::Buckets(_)) || !gap.buckets.is_empty());
        self.gaps.insert(self.next_buckets(), Gap { window, buckets, is_closed: false });
    }

    /// Returns the owned buckets that are read through the main window.
    pub(super) fn main_buckets(&self, owned: BucketSet) -> BucketSet {
        self.gaps.iter().fold(owned, |buckets, (part, gap)| match part {
            Part::Buckets(_) => buckets.without(&gap.buckets),
            Part::Topic(_) => buckets,
        })
    }

    /// Returns the owned buckets that are read through the window of this part.
    pub(super) fn buckets(&self, part: Option<&Part>, owned: BucketSet) -> BucketSet {
        match part.and_then(|part| self.gaps.get(part)) {
            Some(gap) => gap.buckets.intersection(&owned),
            None => self.main_buckets(owned),
        }
    }

    /// Returns the topics that are read through narrower windows than that of this part.
    pub(super) fn muted_topics(&self, part: Option<&Part>) -> impl Iterator<Item = Scope> {
        let is_wide = !matches!(part, Some(Part::Topic(_)));
        let topics = self.gaps.keys().filter_map(|part| match part {
            Part::Topic(topic) => Some(Scope::Topic(topic.clone())),
            Part::Buckets(_) => None,
        });
        topics.filter(move |_| is_wide)
    }

    /// Returns the closed topics.
    pub(super) fn closed(&self) -> Vec<Scope> {
        let closed = self.gaps.iter().filter(|(_, gap)| gap.is_closed);
        closed
            .filter_map(|(part, _)| match part {
                Part::Topic(topic) => Some(Scope::Topic(topic.clone())),
                Part::Buckets(_) => None,
            })
            .collect()
    }

    /// Returns the wide window to read next: the main one and all open gaps that may have more take
    /// turns. Those that stopped at rows to be parked or buried wait until there is room for such
    /// rows.
    pub(super) fn choose(&self, room_to_wait: bool) -> Option<Option<Part>> {
        let may_be_read = |window: &Window| window.more && (room_to_wait || !window.waits);
        let open = self.gaps.iter().filter(|(_, gap)| !gap.is_closed && may_be_read(&gap.window));
        let mut ready: Vec<Option<Part>> = open.map(|(part, _)| Some(part.clone())).collect();
        ready.extend(may_be_read(&self.main).then_some(None));
        // Gaps in their order, then the main window; the first one after the last that was read.
        ready.iter().find(|part| is_behind(part, &self.turn)).or(ready.first()).cloned()
    }

    /// Returns true if a window waits for room for rows that are to be parked or buried.
    pub(super) fn has_waiting(&self) -> bool {
        let open = self.gaps.values().filter(|gap| !gap.is_closed).map(|gap| &gap.window);
        open.chain([&self.main]).any(|window| window.waits && window.more)
    }

    /// Records the window whose turn it was.
    pub(super) fn took(&mut self, part: &Option<Part>) {
        self.turn.clone_from(part);
    }
}

/// Returns true if a window's turn comes after another's: gaps in their order, the main window
/// last.
fn is_behind(part: &Option<Part>, last: &Option<Part>) -> bool {
    match (part, last) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(part), Some(last)) => part > last,
    }
}
