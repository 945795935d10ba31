//! Turns: which of several messages are behind others of their keys that wait for the consumer.

use std::collections::{HashMap, HashSet, VecDeque};

use outbox_contract::backend::Position;
use outbox_contract::{Consumer, Message, MessageId, Route};
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, Row};
use uuid::Uuid;

use crate::sql;

/// Maximum number of waiting messages that are read beyond those that are asked about.
const MAX_OTHERS: usize = 1_000;

/// Topic and order key.
type Key = (Vec<u8>, Vec<u8>);

/// Messages that wait in the hot table, none of them handled yet, in the order of their keys.
#[derive(Debug, Default)]
struct Turns {
    keys: HashMap<Key, VecDeque<MessageId>>,
    ids: HashSet<MessageId>,
    /// True if more may wait than were read.
    is_cut: bool,
}

/// Finds out which of these messages are in turn: nothing of their keys waits in front of them that
/// is not among them. None: one of the keys fails or is held, or too much waits.
///
/// `until`: the last position of these messages, if all of them were seen waiting. Where one is not
/// there any more, all that waits is read.
pub(crate) async fn find(
    connection: &mut MySqlConnection,
    opening: &str,
    (consumer, route): (&Consumer, &Route),
    messages: &[&Message],
    until: Option<Position>,
) -> Result<Option<Vec<bool>>, sqlx::Error> {
    let waiting = waiting(consumer, route, messages, until);
    let Some(mut turns) = read(connection, format!("{opening}{waiting}"), messages.len()).await? else {
        return Ok(None);
    };
    if until.is_some() && !messages.iter().all(|message| turns.ids.contains(&message.id)) {
        let all = self::waiting(consumer, route, messages, None);
        match read(connection, all, messages.len()).await? {
            Some(read) => turns = read,
            None => return Ok(None),
        }
    }
    Ok(turns.of(messages))
}

async fn read(
    connection: &mut MySqlConnection,
    statements: String,
    asked: usize,
) -> Result<Option<Turns>, sqlx::Error> {
    let mut turns = Turns::default();
    let mut rows = 0;
    for row in sqlx::raw_sql(AssertSqlSafe(statements)).fetch_all(connection).await? {
        if row.columns().len() == 1 {
            // A key that fails or is held.
            return Ok(None);
        }
        rows += 1;
        turns.add(&row)?;
    }
    turns.is_cut = rows >= most(asked);
    Ok(Some(turns))
}

const fn most(asked: usize) -> usize {
    asked + MAX_OTHERS
}

/// The statements that read which of the messages' keys fail, and what waits of them. By the
/// primary key, from the first position on: one walk for all of them.
fn waiting(consumer: &Consumer, route: &Route, messages: &[&Message], until: Option<Position>) -> String {
    let keys: HashSet<String> = messages
        .iter()
        .map(|message| {
            let (topic, key) = (message.topic.as_str(), message.order_key());
            format!("({},{})", sql::literal(topic), sql::literal(key.as_str()))
        })
        .collect();
    let keys = sql::commas(&keys);
    let (route, consumer) = (sql::literal(route.as_str()), sql::literal(consumer.as_str()));
    let until = until.map(|until| format!(" and m.position <= {}", until.0)).unwrap_or_default();
    let [failing, hot] = statements(&route, &consumer, &keys, &until, most(messages.len()));
    format!("{failing}; {hot}")
}

/// The look-up of handled ids is no join and no `not exists`: with a plan of when few were handled,
/// servers would read all that the consumer has ever handled for each statement.
fn statements(route: &str, consumer: &str, keys: &str, until: &str, limit: usize) -> [String; 2] {
    [
        format!("select 1 from outbox_key where route = {route} and (topic, `key`) in ({keys}) limit 1"),
        format!(
            "select m.id, m.topic, m.order_key from outbox_message m force index (primary) \
             where m.route = {route}{until} and (m.topic, m.order_key) in ({keys}) \
             and (select 1 from outbox_handled a force index (primary) where a.consumer = {consumer} and a.id = m.id) is null \
             order by m.position limit {limit}"
        ),
    ]
}

/// Statements as they are written here, for the server to prepare when the tables are checked.
pub(crate) fn samples() -> [String; 2] {
    let text = sql::literal("sample");
    statements(&text, &text, &format!("({text},{text})"), " and m.position <= 1", 1)
}

impl Turns {
    fn add(&mut self, row: &MySqlRow) -> Result<(), sqlx::Error> {
        let (topic, key): (Vec<u8>, Vec<u8>) = (row.try_get_unchecked(1)?, row.try_get_unchecked(2)?);
        // What has no id is in front of its key nevertheless, and becomes a dead letter.
        let id = Uuid::from_slice(row.try_get_unchecked(0)?).unwrap_or_default();
        self.push((topic, key), MessageId::from_uuid(id));
        Ok(())
    }

    fn push(&mut self, key: Key, id: MessageId) {
        self.keys.entry(key).or_default().push_back(id);
        self.ids.insert(id);
    }

    /// Returns true for each of these messages that is in turn, if those in front of it are handled
    /// as they are. None: what was read does not tell.
    fn of(mut self, messages: &[&Message]) -> Option<Vec<bool>> {
        let mut given = HashSet::new();
        let mut in_turn = Vec::with_capacity(messages.len());
        for message in messages {
            let key = (
                message.topic.as_str().as_bytes().to_vec(),
                message.order_key().as_str().as_bytes().to_vec(),
            );
            let waiting = self.keys.entry(key).or_default();
            let first = waiting.front().copied();
            if first.is_none() && self.is_cut {
                return None;
            }
            if first == Some(message.id) {
                waiting.pop_front();
            }
            let is_first = first.is_none_or(|first| first == message.id) || given.contains(&message.id);
            if is_first {
                given.insert(message.id);
            }
            in_turn.push(is_first);
        }
        Some(in_turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(key: &str) -> Message {
        Message::new("orders", "placed").unwrap().with_key(key).unwrap()
    }

    fn turns(waiting: &[&Message]) -> Turns {
        let mut turns = Turns::default();
        for message in waiting {
            let key = (b"orders".to_vec(), message.order_key().as_str().as_bytes().to_vec());
            turns.push(key, message.id);
        }
        turns
    }

    #[test]
    fn a_message_is_in_turn_behind_those_that_are_given_before_it() {
        let [a, b, c, other] = [message("k"), message("k"), message("k"), message("l")];
        let of = |waiting: &[&Message], given: &[&Message]| turns(waiting).of(given).unwrap();
        assert_eq!(of(&[], &[&a, &other]), [true, true], "nothing waits");
        assert_eq!(of(&[&a, &b, &c], &[&a, &other, &b]), [true, true, true]);
        assert_eq!(of(&[&a, &b, &c], &[&b, &other, &c]), [false, true, false]);
        // A repeat of one that waits further back lets later ones pass, not those before.
        assert_eq!(of(&[&a, &b], &[&b, &a, &b]), [false, true, true]);
        assert_eq!(of(&[&a, &b], &[&a, &a]), [true, true], "given twice");
        assert_eq!(of(&[&a], &[&b]), [false], "it does not wait, and others do");
    }

    #[test]
    fn what_was_not_read_is_not_known() {
        let [a, b, other] = [message("k"), message("k"), message("l")];
        let cut = |waiting: &[&Message]| Turns { is_cut: true, ..turns(waiting) };
        assert_eq!(cut(&[&a]).of(&[&a]), Some(vec![true]));
        assert_eq!(cut(&[&a]).of(&[&b]), Some(vec![false]));
        assert_eq!(cut(&[&a]).of(&[&a, &b]), None, "others may be in front of it");
        assert_eq!(cut(&[&a]).of(&[&other]), None);
    }

    #[test]
    fn nothing_of_a_name_is_read_as_sql() {
        let evil =
            Message::new("a'; drop table outbox_message; --", "e").unwrap().with_key("' or ''='").unwrap();
        let (consumer, route) = (Consumer::new("shop").unwrap(), Route::new("inbox/shop").unwrap());
        let statements = waiting(&consumer, &route, &[&evil], None);
        assert!(!statements.contains("drop") && !statements.contains(" or "), "{statements}");
    }
}
