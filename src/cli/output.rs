//! What commands print on stdout: tables for people, JSON for programs.

use std::io::{self, Write};

use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use super::visible::{visible, visible_lines};

/// How data is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// Columns for people.
    #[default]
    Table,
    /// One JSON document.
    Json,
    /// One JSON document per line.
    Jsonl,
}

/// Something that is printed as one row of a table, or as one JSON object.
pub(super) trait Row: Serialize {
    /// Names of the columns.
    const COLUMNS: &'static [&'static str];
    /// One cell per column.
    fn cells(&self) -> Vec<String>;
}

/// Something that is printed alone: names and values, or one JSON object.
pub(super) trait Sheet: Serialize {
    /// Names and values in the order in which they are read.
    fn lines(&self) -> Vec<(&'static str, String)>;
}

/// Prints rows.
pub(super) fn print_rows<R: Row>(format: Format, rows: &[R]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match format {
        Format::Table => writeln!(out, "{}", table(R::COLUMNS, rows.iter().map(Row::cells)))?,
        Format::Json => write_json(&mut out, &rows, true)?,
        Format::Jsonl => {
            for row in rows {
                write_json(&mut out, row, false)?;
            }
        }
    }
    out.flush()
}

/// Prints one thing.
pub(super) fn print_sheet<S: Sheet>(format: Format, sheet: &S) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match format {
        Format::Table => {
            let mut table = plain_table();
            for (name, value) in sheet.lines() {
                // The lines of a value stand under each other, beside its name.
                table.add_row([name.to_owned(), visible_lines(&value).into_owned()]);
            }
            writeln!(out, "{}", trimmed(&table))?;
        }
        Format::Json => write_json(&mut out, sheet, true)?,
        Format::Jsonl => write_json(&mut out, sheet, false)?,
    }
    out.flush()
}

/// Prints text that is complete with its last line end.
pub(super) fn print_text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// A table of text cells under upper-case column names.
pub(super) fn table(columns: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = plain_table();
    table.set_header(columns.iter().map(|column| column.to_uppercase()));
    for row in rows {
        table.add_row(row.iter().map(|cell| visible(cell)));
    }
    trimmed(&table)
}

/// Rows that are printed one by one as they come; in JSON they make up one array.
#[derive(Debug)]
pub(super) struct Listing {
    format: Format,
    printed: u64,
}

impl Listing {
    /// Starts a listing.
    pub(super) fn new(format: Format) -> Self {
        Self { format, printed: 0 }
    }

    /// Prints a row, at once and for good: it has left the process when this returns.
    pub(super) fn print<R: Row>(&mut self, row: &R) -> io::Result<()> {
        let mut out = io::stdout().lock();
        match self.format {
            Format::Table => writeln!(out, "{}", visible(&row.cells().join("  ")))?,
            Format::Jsonl => write_json(&mut out, row, false)?,
            Format::Json => {
                // The line of a row ends when it is known whether another one follows.
                let lead = if self.printed == 0 { "[\n" } else { ",\n" };
                write!(out, "{lead}")?;
                serde_json::to_writer(&mut out, row)?;
            }
        }
        self.printed += 1;
        out.flush()
    }

    /// Ends the listing.
    pub(super) fn finish(self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        match (self.format, self.printed) {
            (Format::Json, 0) => writeln!(out, "[]")?,
            (Format::Json, _) => writeln!(out, "\n]")?,
            _ => {}
        }
        out.flush()
    }
}

fn write_json(out: &mut impl Write, value: &impl Serialize, pretty: bool) -> io::Result<()> {
    if pretty {
        serde_json::to_writer_pretty(&mut *out, value)?;
    } else {
        serde_json::to_writer(&mut *out, value)?;
    }
    writeln!(out)
}

fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table
}

/// The table without the blanks that fill its lines on both sides.
fn trimmed(table: &Table) -> String {
    let lines: Vec<String> =
        table.lines().map(|line| line.strip_prefix(' ').unwrap_or(&line).trim_end().to_owned()).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_upper_case_columns_and_no_trailing_blanks() {
        let rows = vec![vec!["orders".to_owned(), "7".to_owned()], vec!["x".to_owned(), String::new()]];
        let text = table(&["name", "ready"], rows.into_iter());
        assert_eq!(text, "NAME    READY\norders  7\nx");
    }
}
