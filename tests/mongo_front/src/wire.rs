//! MongoDB's wire protocol: messages from and to bytes. No input and output here.

use bson::raw::{RawBsonRef, RawDocument};
use bson::{Bson, Document};
use thiserror::Error;

/// The header of every message: its length, its number, the number it answers, its kind; four
/// numbers of 32 bits, little-endian.
pub(crate) const HEADER: usize = 16;
/// The longest message that is read or announced, in bytes (`maxMessageSizeBytes` of MongoDB).
pub(crate) const LONGEST: usize = 48_000_000;
/// The longest document that is announced, in bytes.
pub(crate) const LONGEST_DOCUMENT: usize = 16 * 1024 * 1024;
/// Maximum nesting depth of documents: a little more than MongoDB's 180, and far less than would
/// exhaust a stack.
const DEEPEST: usize = 200;

const OP_REPLY: i32 = 1;
const OP_QUERY: i32 = 2004;
const OP_MSG: i32 = 2013;

const CHECKSUM_PRESENT: u32 = 1;
const MORE_TO_COME: u32 = 1 << 1;
/// Bits that a reader has to know, or to refuse the message. Those above may be ignored.
const REQUIRED: u32 = 0xFFFF;

/// Reason why bytes are no message.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum Malformed {
    #[error("a message of {0} bytes; {HEADER} to {LONGEST} are allowed")]
    Length(i32),
    #[error("a message of kind {0}; 2013 (OP_MSG) and 2004 (OP_QUERY) are known")]
    Kind(i32),
    #[error("the message ends in the middle of something")]
    Short,
    #[error("flags {0:#x}, of which some must be known and are not")]
    Flags(u32),
    #[error("a section of kind {0}; 0 and 1 are known")]
    Section(u8),
    #[error("not one body but {0}")]
    Bodies(usize),
    #[error("two lists of one name, or one that the body has too")]
    Twice,
    #[error("a document that is none")]
    Document,
    #[error("documents that nest deeper than {DEEPEST}")]
    Deep,
}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Number of bytes after the header.
    pub(crate) length: usize,
    /// The sender's number for it.
    pub(crate) id: i32,
    kind: i32,
}

impl Header {
    /// Reads a header, and refuses lengths and kinds that no client sends.
    pub(crate) fn decode(bytes: [u8; HEADER]) -> Result<Self, Malformed> {
        let mut rest = bytes.as_slice();
        let (length, id, _answers, kind) =
            (number(&mut rest)?, number(&mut rest)?, number(&mut rest)?, number(&mut rest)?);
        let body = usize::try_from(length).ok().filter(|length| *length <= LONGEST);
        let body = body.and_then(|length| length.checked_sub(HEADER)).ok_or(Malformed::Length(length))?;
        if kind != OP_MSG && kind != OP_QUERY {
            return Err(Malformed::Kind(kind));
        }
        Ok(Self { length: body, id, kind })
    }
}

/// A command of a client.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Request {
    pub(crate) command: Document,
    /// True for the old form, which only a handshake has, and which needs an answer in the old
    /// form.
    pub(crate) legacy: bool,
    /// True if the client waits for an answer.
    pub(crate) answered: bool,
}

impl Request {
    /// Reads the bytes after a header.
    pub(crate) fn decode(header: Header, bytes: &[u8]) -> Result<Self, Malformed> {
        if header.kind == OP_QUERY { Self::query(bytes) } else { Self::message(bytes) }
    }

    fn query(mut rest: &[u8]) -> Result<Self, Malformed> {
        number(&mut rest)?;
        string(&mut rest)?;
        number(&mut rest)?;
        number(&mut rest)?;
        let command = document(&mut rest)?;
        Ok(Self { command, legacy: true, answered: true })
    }

    fn message(mut rest: &[u8]) -> Result<Self, Malformed> {
        let flags = u32::from_le_bytes(number(&mut rest)?.to_le_bytes());
        if flags & REQUIRED & !(CHECKSUM_PRESENT | MORE_TO_COME) != 0 {
            return Err(Malformed::Flags(flags));
        }
        if flags & CHECKSUM_PRESENT != 0 {
            // A checksum of the transport, which loses nothing here.
            let end = rest.len().checked_sub(4).ok_or(Malformed::Short)?;
            rest = rest.get(..end).ok_or(Malformed::Short)?;
        }
        let (mut bodies, mut lists) = (Vec::new(), Vec::new());
        while let [kind, after @ ..] = rest {
            rest = after;
            match kind {
                0 => bodies.push(document(&mut rest)?),
                1 => lists.push(list(&mut rest)?),
                kind => return Err(Malformed::Section(*kind)),
            }
        }
        let (Some(mut command), true) = (bodies.pop(), bodies.is_empty()) else {
            return Err(Malformed::Bodies(bodies.len()));
        };
        for (name, documents) in lists {
            if command.insert(name, documents).is_some() {
                return Err(Malformed::Twice);
            }
        }
        Ok(Self { command, legacy: false, answered: flags & MORE_TO_COME == 0 })
    }
}

/// Returns the bytes of an answer to message `id`.
///
/// # Errors
///
/// [`Malformed`]: the answer can't be written as a document, or is longer than a message may be.
pub(crate) fn encode(id: i32, legacy: bool, answer: &Document) -> Result<Vec<u8>, Malformed> {
    let body = answer.to_vec().map_err(|_| Malformed::Document)?;
    let mut bytes = vec![0; HEADER];
    if legacy {
        // Flags (a server that may be asked to wait), no cursor, from the first, one document.
        for word in [8, 0, 0, 0, 1] {
            bytes.extend(i32::to_le_bytes(word));
        }
    } else {
        // No flags, one section: a body.
        bytes.extend([0; 5]);
    }
    bytes.extend(body);
    let length = i32::try_from(bytes.len()).map_err(|_| Malformed::Length(i32::MAX))?;
    if bytes.len() > LONGEST {
        return Err(Malformed::Length(length));
    }
    let kind = if legacy { OP_REPLY } else { OP_MSG };
    let header: Vec<u8> = [length, id, id, kind].into_iter().flat_map(i32::to_le_bytes).collect();
    bytes.splice(..HEADER, header);
    Ok(bytes)
}

fn take<'b>(rest: &mut &'b [u8], count: usize) -> Result<&'b [u8], Malformed> {
    let (taken, after) = rest.split_at_checked(count).ok_or(Malformed::Short)?;
    *rest = after;
    Ok(taken)
}

fn number(rest: &mut &[u8]) -> Result<i32, Malformed> {
    let bytes = take(rest, 4)?;
    bytes.try_into().map(i32::from_le_bytes).map_err(|_| Malformed::Short)
}

/// A string that ends with a zero.
fn string(rest: &mut &[u8]) -> Result<String, Malformed> {
    let end = rest.iter().position(|byte| *byte == 0).ok_or(Malformed::Short)?;
    let text = take(rest, end)?;
    take(rest, 1)?;
    String::from_utf8(text.to_vec()).map_err(|_| Malformed::Document)
}

/// Bytes that begin with their own length; the length counts itself.
fn sized<'b>(rest: &mut &'b [u8]) -> Result<&'b [u8], Malformed> {
    let length = number(&mut &**rest)?;
    let length = usize::try_from(length).ok().filter(|length| *length >= 4).ok_or(Malformed::Short)?;
    take(rest, length)
}

fn list(rest: &mut &[u8]) -> Result<(String, Vec<Bson>), Malformed> {
    let mut section = sized(rest)?;
    number(&mut section)?;
    let name = string(&mut section)?;
    let mut documents = Vec::new();
    while !section.is_empty() {
        documents.push(Bson::Document(document(&mut section)?));
    }
    Ok((name, documents))
}

fn document(rest: &mut &[u8]) -> Result<Document, Malformed> {
    parse(sized(rest)?)
}

/// Parses a document from its bytes. Its depth is checked first, as parsing recurses.
pub(crate) fn parse(bytes: &[u8]) -> Result<Document, Malformed> {
    let raw = RawDocument::from_bytes(bytes).map_err(|_| Malformed::Document)?;
    check_depth(raw, DEEPEST)?;
    Document::try_from(raw).map_err(|_| Malformed::Document)
}

fn check_depth(document: &RawDocument, left: usize) -> Result<(), Malformed> {
    let left = left.checked_sub(1).ok_or(Malformed::Deep)?;
    for element in document {
        let (_, value) = element.map_err(|_| Malformed::Document)?;
        let inner = match value {
            RawBsonRef::Document(inner) => inner,
            RawBsonRef::Array(inner) => {
                RawDocument::from_bytes(inner.as_bytes()).map_err(|_| Malformed::Document)?
            }
            RawBsonRef::JavaScriptCodeWithScope(code) => code.scope,
            _ => continue,
        };
        check_depth(inner, left)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
