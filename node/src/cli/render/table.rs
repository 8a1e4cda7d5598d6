//! Columns that fit. Pure. Must not know: what is in them.
use super::Style;

/// Meaning by colour; always beside a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Colour {
    Plain,
    Green,
    Yellow,
    Red,
    Faint,
}

impl Colour {
    pub(super) fn code(self) -> Option<&'static str> {
        Some(match self {
            Colour::Plain => return None,
            Colour::Green => "32",
            Colour::Yellow => "33",
            Colour::Red => "31",
            Colour::Faint => "2",
        })
    }

    /// Of a health.
    pub(super) fn of_health(health: &str) -> Colour {
        match health {
            "ok" => Colour::Green,
            "starting" => Colour::Plain,
            "degraded" | "restarting" => Colour::Yellow,
            _ => Colour::Red,
        }
    }
}

/// One cell.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) colour: Colour,
    pub(super) right: bool,
}

/// A plain cell; what is in it cannot drive the terminal.
pub(super) fn cell(text: impl AsRef<str>) -> Cell {
    Cell {
        text: dashboard::text::visible(text.as_ref()).into_owned(),
        colour: Colour::Plain,
        right: false,
    }
}

impl Cell {
    pub(super) fn colour(self, colour: Colour) -> Cell {
        Cell { colour, ..self }
    }

    /// Aligned to the right, for numbers.
    pub(super) fn right(self) -> Cell {
        Cell { right: true, ..self }
    }
}

/// Rows of cells; the first row is the head. The last column takes what is left of the width.
pub(super) fn table(style: &Style, rows: &[Vec<Cell>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|r| r.get(column)).map(|c| c.text.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for (i, row) in rows.iter().enumerate() {
        let mut line = String::new();
        let mut used = 0;
        let last = row.len().saturating_sub(1);
        for (column, cell) in row.iter().enumerate() {
            let width = widths.get(column).copied().unwrap_or(0);
            let room = style.width.map(|w| w.saturating_sub(used));
            let text = cut(&cell.text, room);
            let pad = width.saturating_sub(text.chars().count());
            let colour = if i == 0 { Colour::Faint } else { cell.colour };
            let (before, after) = if cell.right { (pad, 0) } else { (0, pad) };
            line.push_str(&" ".repeat(before));
            line.push_str(&if text.is_empty() {
                String::new()
            } else {
                style.paint(colour, &text)
            });
            if column != last {
                line.push_str(&" ".repeat(after + 2));
            }
            used += width + 2;
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// At most `room` columns, with a mark where something is missing.
pub(super) fn cut(text: &str, room: Option<usize>) -> String {
    match room {
        Some(room) if text.chars().count() > room => {
            let kept: String = text.chars().take(room.saturating_sub(1)).collect();
            if room == 0 { String::new() } else { kept + "…" }
        }
        _ => text.to_owned(),
    }
}
