//! Output: tables for people, JSON for programs.

use std::io::{self, IsTerminal, Write};

use comfy_table::presets::NOTHING;
use comfy_table::{ColumnConstraint, ContentArrangement, Table};
use serde_json::Value;

use crate::escape;
use crate::exit::Failed;
use crate::redact;

/// Width of a table that no terminal shows.
const WIDTH: u16 = 160;

/// EIO: on a terminal, the error of one that was closed.
const INPUT_OUTPUT: i32 = 5;

/// The standard output, in one of its two forms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    json: bool,
    width: u16,
    terminal: bool,
}

/// One item of a list, in both forms.
#[derive(Debug)]
pub(crate) struct Row {
    /// The object that programs read.
    pub(crate) json: Value,
    /// The cells that people read.
    pub(crate) cells: Vec<String>,
}

impl Out {
    /// Creates an output: JSON if it is asked for, or if no terminal shows it.
    pub(crate) fn new(json: bool, table: bool) -> Self {
        let terminal = io::stdout().is_terminal();
        let width = console::Term::stdout().size_checked().map_or(WIDTH, |(_, columns)| columns);
        Self { json: json || !(table || terminal), width: if terminal { width } else { WIDTH }, terminal }
    }

    /// Returns true if programs read this.
    pub(crate) const fn is_json(self) -> bool {
        self.json
    }

    /// Prints a list: a table, or one object a line.
    pub(crate) fn list(self, head: &[&str], rows: &[Row]) -> Result<(), Failed> {
        if self.json {
            return rows.iter().try_for_each(|row| self.object(&row.json));
        }
        if rows.is_empty() {
            return self.text("none");
        }
        let mut table = Table::new();
        table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(self.width).set_header(head.iter().map(|name| name.to_uppercase()));
        for row in rows {
            table.add_row(row.cells.iter().map(|cell| escape::cell(cell)));
        }
        // The first column is what people copy: an id, or a route.
        if let Some(column) = table.column_mut(0) {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
        self.text(&trimmed(&table.to_string()))
    }

    /// Prints named values: one a line, or one object.
    pub(crate) fn fields(self, fields: &[(&str, String)], json: &Value) -> Result<(), Failed> {
        if self.json {
            return self.object(json);
        }
        let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
        let lines: Vec<String> = fields
            .iter()
            .map(|(name, value)| format!("{name:width$}  {}", escape::short(value, 2_000)))
            .collect();
        self.text(&lines.join("\n"))
    }

    /// Prints a text, or an object in its place.
    pub(crate) fn say(self, text: &str, json: &Value) -> Result<(), Failed> {
        if self.json { self.object(json) } else { self.text(&escape::lines(text)) }
    }

    /// Prints an object on a line.
    pub(crate) fn object(self, json: &Value) -> Result<(), Failed> {
        self.text(&escape::json(&json.to_string()))
    }

    /// Prints text that is safe already, with secrets hidden.
    pub(crate) fn text(self, text: &str) -> Result<(), Failed> {
        let mut out = io::stdout().lock();
        let written = writeln!(out, "{}", redact::hide(text)).and_then(|()| out.flush());
        written.map_err(|error| match error.raw_os_error() {
            Some(INPUT_OUTPUT) if self.terminal => Failed::ReaderGone,
            _ => error.into(),
        })
    }
}

/// Prints a remark beside the output, for people.
pub(crate) fn remark(text: &str) {
    // Nothing is lost if it is not read.
    let _ = writeln!(io::stderr().lock(), "{}", redact::hide(&escape::lines(text)));
}

/// Removes the blanks around a table's lines.
fn trimmed(table: &str) -> String {
    let lines: Vec<&str> = table.lines().map(str::trim_end).collect();
    let margin =
        lines.iter().filter(|line| !line.is_empty()).map(|line| line.len() - line.trim_start().len());
    let margin = margin.min().unwrap_or_default();
    lines.iter().map(|line| line.get(margin..).unwrap_or_default()).collect::<Vec<_>>().join("\n")
}
