//! Nodes of a cluster, and the keys that each has. Pure.

use redis::{Arg, Cmd, Value};

use crate::connection::{list, number, text};
use crate::error::Error;

/// Number of slots of a cluster.
const SLOTS: u16 = 16_384;

/// The address of a node: host and port.
pub(crate) type Address = (String, u16);

/// The primaries of a cluster, and the slots of each.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Slots {
    /// The primaries, each once.
    pub(crate) nodes: Vec<Address>,
    /// First slot, last slot, and the place of their primary in `nodes`.
    ranges: Vec<(u16, u16, usize)>,
}

impl Slots {
    /// Reads the answer to `CLUSTER SLOTS`. A node that names no host of its own is on the host
    /// that was `asked`.
    pub(crate) fn read(answer: &Value, asked: &str) -> Result<Self, Error> {
        let mut slots = Self::default();
        for range in list(answer)? {
            let [first, last, primary, ..] = list(range)? else {
                return Err(Error::unexpected("CLUSTER SLOTS"));
            };
            let [host, port, ..] = list(primary)? else { return Err(Error::unexpected("CLUSTER SLOTS")) };
            let host = if matches!(host, Value::Nil) { String::new() } else { text(host)? };
            let host = if host.is_empty() { asked.to_owned() } else { host };
            let address = (host, small(port)?);
            let known = slots.nodes.iter().position(|node| *node == address);
            let node = known.unwrap_or_else(|| {
                slots.nodes.push(address);
                slots.nodes.len() - 1
            });
            slots.ranges.push((small(first)?, small(last)?, node));
        }
        Ok(slots)
    }

    /// The place of the node that a command goes to: that of its key. One without a key goes to the
    /// first, and the frame of a transaction to the node of the command `before` it.
    ///
    /// # Errors
    ///
    /// No node has its slot.
    pub(crate) fn node_of(&self, command: &Cmd, before: usize) -> Result<usize, Error> {
        let Some(key) = key_of(command) else {
            let is_frame = matches!(argument(command, 0), Some(b"MULTI" | b"EXEC"));
            return Ok(if is_frame { before } else { 0 });
        };
        let slot = slot_of(key);
        let range = self.ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
        range.map(|(.., node)| *node).ok_or_else(|| {
            Error::route(
                "cluster-down",
                format!("slot {slot} of the cluster has no node; check CLUSTER INFO; will retry"),
            )
        })
    }
}

fn small(value: &Value) -> Result<u16, Error> {
    u16::try_from(number(value)?).map_err(|_| Error::unexpected("CLUSTER SLOTS"))
}

/// The first key of a command of this transport. All keys of a command have one hash tag.
fn key_of(command: &Cmd) -> Option<&[u8]> {
    let name = argument(command, 0)?;
    let place = match name {
        b"EVAL" | b"EVALSHA" => 3,
        b"GET" | b"PTTL" | b"HGET" | b"HSETNX" | b"SET" | b"TYPE" | b"WATCH" | b"XACK" | b"XADD" => 1,
        _ => return None,
    };
    argument(command, place)
}

fn argument(command: &Cmd, place: usize) -> Option<&[u8]> {
    match command.args_iter().nth(place)? {
        Arg::Simple(bytes) => Some(bytes),
        _ => None,
    }
}

/// The slot of a key: of what is between its first braces, if there is anything.
fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let after = key.get(open + 1..)?;
        let close = after.iter().position(|byte| *byte == b'}')?;
        after.get(..close).filter(|tag| !tag.is_empty())
    });
    checksum(tag.unwrap_or(key)) % SLOTS
}

/// CRC-16 as XMODEM has it, which the specification of clusters names.
fn checksum(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |sum, byte| {
        (0..8).fold(sum ^ (u16::from(*byte) << 8), |sum, _| {
            if sum & 0x8000 == 0 { sum << 1 } else { (sum << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use redis::cmd;

    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let node = Value::Array(vec![host, Value::Int(port), bulk("id")]);
        Value::Array(vec![Value::Int(first), Value::Int(last), node])
    }

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(checksum(b"123456789"), 0x31c3);
        // Answers of `CLUSTER KEYSLOT`.
        assert_eq!(slot_of(b"foo"), 12_182);
        assert_eq!(slot_of(b"{foo}:more"), 12_182);
        assert_ne!(slot_of(b"a{}{foo}"), 12_182, "an empty tag is none");
    }

    #[test]
    fn commands_go_to_the_node_of_their_key() {
        let answer = Value::Array(vec![
            range(0, 8_000, bulk("one"), 1),
            range(8_001, 16_000, Value::Nil, 2),
            range(16_001, 16_383, bulk("one"), 1),
        ]);
        let slots = Slots::read(&answer, "asked").unwrap();
        assert_eq!(slots.nodes, [("one".to_owned(), 1), ("asked".to_owned(), 2)]);
        let node = |command: &mut Cmd| slots.node_of(command, 1);
        assert_eq!(node(cmd("XACK").arg("x{foo}").arg("group")), Ok(1));
        assert_eq!(node(cmd("EVALSHA").arg("name").arg(2).arg("{foo}:a").arg("{foo}:b")), Ok(1));
        assert_eq!(node(cmd("EVAL").arg("text").arg(1).arg("{foo}:a")), Ok(1));
        assert_eq!(node(cmd("INFO").arg("server")), Ok(0));
        assert_eq!(
            [node(&mut cmd("MULTI")), node(&mut cmd("EXEC"))],
            [Ok(1), Ok(1)],
            "where the last one went"
        );
        assert!(Slots::read(&Value::Array(vec![range(0, 1, bulk("one"), 70_000)]), "asked").is_err());
    }

    #[test]
    fn a_slot_without_a_node_makes_the_route_unavailable() {
        let error = Slots::default().node_of(cmd("HGET").arg("foo").arg("units"), 0).unwrap_err();
        assert_eq!((error.class, error.reach), ("cluster-down", crate::error::Reach::Route));
    }
}
