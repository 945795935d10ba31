//! Attributes of an event by their names, wherever they stood in the record.

use std::borrow::Cow;

use super::{Raw, text};
use crate::backend::Undecodable;
use crate::backend::cloudevents::{Binding, attribute_of};
use crate::name;

/// The attributes of one event, each once. Names are in lower case, values are whatever bytes they
/// are.
pub(super) struct Attributes<'r> {
    /// Beginning of their names in errors and notes.
    prefix: &'static str,
    list: Vec<(Cow<'r, str>, Raw<'r>)>,
}

impl<'r> Attributes<'r> {
    /// The members of an event in structured mode.
    pub(super) fn of_members(list: Vec<(Cow<'r, str>, Raw<'r>)>) -> Self {
        Self { prefix: "", list }
    }

    /// Those among the headers, under any prefix. The first one counts; one under the prefix of the
    /// binding goes before all others.
    pub(super) fn of_headers(headers: &'r [(Raw<'r>, Raw<'r>)], binding: Binding) -> Self {
        let mut list: Vec<(Cow<'r, str>, Raw<'r>)> = Vec::with_capacity(headers.len());
        let mut prefixes: Vec<&str> = Vec::with_capacity(headers.len());
        for (header, value) in headers {
            let Some((prefix, name)) = attribute_of(header) else { continue };
            match list.iter().position(|(known, _)| *known == name) {
                None => {
                    list.push((name, Cow::Borrowed(&**value)));
                    prefixes.push(prefix);
                }
                Some(at) if prefix == binding.prefix && prefixes[at] != prefix => {
                    list[at].1 = Cow::Borrowed(&**value);
                    prefixes[at] = prefix;
                }
                Some(_) => {}
            }
        }
        Self { prefix: binding.prefix, list }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.list.iter().map(|(name, value)| (&**name, &**value))
    }

    pub(super) fn get(&self, name: &str) -> Option<&[u8]> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Refuses a record that has none of the required attributes, with the remedy.
    pub(super) fn expect_any(&self, payload: &[u8]) -> Result<(), String> {
        const REQUIRED: [&str; 4] = ["specversion", "id", "source", "type"];
        const STRUCTURED: &[u8] = b"\"specversion\"";
        if REQUIRED.iter().any(|name| self.get(name).is_some()) {
            return Ok(());
        }
        let [version, id, source, kind] = REQUIRED.map(|name| format!("{}{name}", self.prefix));
        let is_structured = payload.trim_ascii_start().starts_with(b"{")
            && payload.windows(STRUCTURED.len()).any(|bytes| bytes == STRUCTURED);
        let remedy = if is_structured {
            "an event in structured mode needs the content type application/cloudevents+json"
        } else {
            "read records that are no CloudEvents with `map_records`"
        };
        Err(format!("the CloudEvents attributes {version}, {id}, {source} and {kind} are missing; {remedy}"))
    }

    /// An attribute without which there is no event.
    pub(super) fn required(&self, name: &str) -> Result<&str, String> {
        let missing = || format!("the CloudEvents attribute {}{name} is missing", self.prefix);
        let value = self.get(name).ok_or_else(missing)?;
        text(value).ok_or_else(|| self.wrong(name, value, "should be UTF-8"))
    }

    /// Gives an attribute that can be read to `set`; notes one that can't.
    pub(super) fn take<'s, T, E>(
        &'s self,
        name: &str,
        notes: &mut Vec<String>,
        read: impl Fn(&'s str) -> Result<T, E>,
        wrong: &str,
        set: impl FnOnce(T),
    ) {
        let Some(value) = self.get(name) else { return };
        match text(value).and_then(|value| read(value).ok()) {
            Some(value) => set(value),
            None => notes.push(self.wrong(name, value, wrong)),
        }
    }

    pub(super) fn wrong(&self, name: &str, value: &[u8], wrong: &str) -> String {
        let value = name::shown(&Undecodable::text(value));
        format!("{}{name} is {value:?}, which {wrong}", self.prefix)
    }
}
