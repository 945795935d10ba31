//! The transport of the model: chunks come back with any outcome that keeps to the key-prefix property.

use super::*;

impl Model {
    /// A chunk comes back. Of each key, what follows a message that was not delivered was not delivered either.
    pub(super) fn publish(&mut self, chunk: usize) -> Judged {
        let chunk = self.chunks.swap_remove(chunk);
        let broke = !self.healed && self.random.u8(..20) == 0;
        let mut outcomes: Vec<Option<Outcome>> = Vec::new();
        let mut rest = &chunk.messages[..];
        while let Some(first) = rest.first() {
            let key = first.message.key_id();
            let count = rest.iter().take_while(|stored| stored.message.key_id() == key).count();
            let (run, others) = rest.split_at(count);
            let heard = self.heard.remove(&(chunk.number, key)).unwrap_or(0);
            outcomes.extend((0..heard).map(|_| Some(Outcome::Delivered)));
            let from = outcomes.len();
            self.publish_run(&run[heard..], &mut outcomes)?;
            if broke {
                outcomes[from..].iter_mut().for_each(|outcome| *outcome = None);
            }
            rest = others;
        }
        self.note(|| format!("chunk {} comes back: {outcomes:?}, broke: {broke}", chunk.number));
        let mut effects = Effects::default();
        if self.case.sabotage == Some(Sabotage::Generations) {
            self.take_for_this_stay(chunk.number);
        }
        self.keys.outcomes(chunk.number, outcomes, broke, self.now, &mut effects);
        self.carry_out(effects);
        self.pump()
    }

    /// Of some keys in a chunk, some or all messages are delivered while the rest is still out.
    pub(super) fn hear(&mut self, chunk: usize) -> Judged {
        let messages = self.chunks[chunk].messages.clone();
        let number = self.chunks[chunk].number;
        let mut delivered = Vec::new();
        let mut rest = &messages[..];
        while let Some(first) = rest.first() {
            let key = first.message.key_id();
            let count = rest.iter().take_while(|stored| stored.message.key_id() == key).count();
            let (run, others) = rest.split_at(count);
            let before = self.heard.get(&(number, key.clone())).copied().unwrap_or(0);
            let by_now = if self.random.bool() { count } else { self.random.usize(before..=count) };
            let poisoned = run.iter().position(|stored| self.poison.contains(&stored.position));
            let by_now = by_now.min(poisoned.unwrap_or(count)).max(before);
            self.publish_first(&run[before..by_now])?;
            self.heard.insert((number, key), by_now);
            delivered.extend((0..count).map(|slot| slot < by_now));
            rest = others;
        }
        self.note(|| format!("of chunk {number} is delivered: {delivered:?}"));
        let mut effects = Effects::default();
        if self.case.sabotage == Some(Sabotage::Generations) {
            self.take_for_this_stay(number);
        }
        self.keys.heard(number, &delivered, self.now, &mut effects);
        self.carry_out(effects);
        self.pump()
    }

    /// These arrive.
    fn publish_first(&mut self, messages: &[Arc<Stored>]) -> Judged {
        for stored in messages {
            let of = self.key_of(stored.position);
            let is_done = |at: &Position| self.log.contains(at) || self.table.is_out(at);
            let passed = self.table.committed[of].iter().find(|at| **at < stored.position && !is_done(at));
            if let Some(passed) = passed {
                return Err(format!("{} arrived before {passed} of the same key", stored.position));
            }
            self.log.insert(stored.position);
        }
        Ok(())
    }

    pub(super) fn take_for_this_stay(&mut self, chunk: u64) {
        for sent in self.keys.chunks.get_mut(&chunk).into_iter().flatten().flatten() {
            if let Some(state) = self.keys.keys.get(&sent.key) {
                sent.generation = state.generation;
            }
        }
    }

    pub(super) fn publish_run(&mut self, run: &[Arc<Stored>], outcomes: &mut Vec<Option<Outcome>>) -> Judged {
        let failure = || Failure::new("model", "as the model has it");
        let poisoned = run.iter().position(|stored| self.poison.contains(&stored.position));
        let most = poisoned.unwrap_or(run.len());
        let arrive = if self.healed || self.random.u8(..3) > 0 { most } else { self.random.usize(..=most) };
        self.publish_first(&run[..arrive])?;
        let confirmed =
            if self.healed || self.random.u8(..6) > 0 { arrive } else { self.random.usize(..=arrive) };
        outcomes.extend((0..confirmed).map(|_| Some(Outcome::Delivered)));
        if confirmed == run.len() {
            return Ok(());
        }
        let left = run.len() - confirmed;
        let kind = if confirmed < arrive { 6 } else { self.random.u8(..8) };
        match kind {
            _ if self.healed => outcomes.push(Some(Outcome::Failed(failure()))),
            0 => outcomes.push(Some(Outcome::Rejected(failure()))),
            1..4 => outcomes.push(Some(Outcome::Failed(failure()))),
            4 => outcomes.push(Some(Outcome::Blocked)),
            5 => {
                let what = if self.random.bool() { Unavailable::Topic } else { Unavailable::Route };
                outcomes.extend((0..left).map(|_| Some(Outcome::Unavailable(what, failure()))));
                return Ok(());
            }
            _ => {
                let unknown = self.random.bool().then(|| Outcome::Unknown(failure()));
                outcomes.extend((0..left).map(|_| unknown.clone()));
                return Ok(());
            }
        }
        outcomes.extend((1..left).map(|_| Some(Outcome::Blocked)));
        Ok(())
    }
}
