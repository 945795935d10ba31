//! Report of the measurements, as a table for people and as JSON for programs.

use std::borrow::Cow;
use std::path::Path;
use std::{fmt, fs, io};

use serde::{Deserialize, Serialize};

/// One table of the report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Table {
    /// Subcommand that made it.
    pub name: Cow<'static, str>,
    /// Its subject and conditions.
    pub about: String,
    /// Name and unit of each column.
    pub columns: Vec<Cow<'static, str>>,
    /// Rows, in the order in which they are shown.
    pub rows: Vec<Row>,
}

/// Measurements of one thing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Name of the thing.
    pub label: String,
    /// One for each column. None: not measured, or meaningless here.
    pub values: Vec<Option<f64>>,
}

impl Table {
    /// Creates a table without rows.
    pub fn new(name: &'static str, about: impl Into<String>, columns: &[&'static str]) -> Self {
        let columns = columns.iter().copied().map(Cow::Borrowed).collect();
        Self { name: Cow::Borrowed(name), about: about.into(), columns, rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, label: impl Into<String>, values: impl IntoIterator<Item = Option<f64>>) {
        self.rows.push(Row { label: label.into(), values: values.into_iter().collect() });
    }

    /// Returns the value of a row in a column.
    pub fn value(&self, label: &str, column: &str) -> Option<f64> {
        let column = self.columns.iter().position(|name| *name == column)?;
        *self.rows.iter().find(|row| row.label == label)?.values.get(column)?
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{}: {}\n", self.name, self.about)?;
        let mut lines = vec![vec![String::new()]];
        lines[0].extend(self.columns.iter().map(|name| name.to_string()));
        for row in &self.rows {
            let values = row.values.iter().map(|value| value.map_or_else(|| "-".to_owned(), figures));
            lines.push([row.label.clone()].into_iter().chain(values).collect());
        }
        let columns = self.columns.len() + 1;
        let width = |column: usize| {
            lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max()
        };
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        for line in &lines {
            write!(f, "  {:<1$}", line[0], widths[0])?;
            for (cell, width) in line.iter().zip(&widths).skip(1) {
                write!(f, "  {cell:>width$}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Returns three significant figures, and at most that many decimal places.
pub fn figures(value: f64) -> String {
    match value.abs() {
        ..0.0005 => "0".to_owned(),
        ..10.0 => format!("{value:.2}"),
        ..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Returns the model of the processor of this machine, and the number of processors.
pub fn processors() -> (Option<String>, Option<usize>) {
    let machine = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = machine.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map(|(_, model)| model.trim().to_owned());
    (model, std::thread::available_parallelism().map(usize::from).ok())
}

/// Writes a report as a file of JSON in a folder.
///
/// # Errors
///
/// The operating system's.
pub fn write(folder: &Path, name: &str, report: &impl Serialize) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let report = serde_json::to_string_pretty(report).expect("a report is JSON");
    fs::write(folder.join(name), format!("{report}\n"))?;
    eprintln!("written to {}", folder.display());
    Ok(())
}
