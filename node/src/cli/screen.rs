//! Where a command's output goes.
//!
//! Must not know: what is written.
use std::io::{self, IsTerminal, Write};

use jiff::Timestamp;

use super::render::Style;

/// Output and what is known of it.
pub struct Screen {
    out: Box<dyn Write + Send>,
    /// Whether somebody looks at it: then a line is as wide as the terminal.
    terminal: bool,
    colour: bool,
    fixed: Option<Style>,
}

impl Screen {
    /// The standard output of this process. Colour only on a terminal, and never with `NO_COLOR`.
    pub fn stdout() -> Screen {
        let out = io::stdout();
        let terminal = out.is_terminal();
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        Screen { out: Box::new(out), terminal, colour: terminal && !unwanted, fixed: None }
    }

    /// Another output, which is no terminal, in a style of the caller's choice.
    pub fn to(out: impl Write + Send + 'static, style: Style) -> Screen {
        Screen { out: Box::new(out), terminal: false, colour: style.colour, fixed: Some(style) }
    }

    /// Whether somebody looks at it.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// How to make text now; the width is asked anew, since windows change.
    pub fn style(&self) -> Style {
        self.fixed.unwrap_or_else(|| Style {
            width: self.terminal.then(width).flatten(),
            colour: self.colour,
            now: Timestamp::now(),
        })
    }

    /// Writes text at once.
    ///
    /// # Errors
    /// The output takes nothing any more.
    pub fn write(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    /// Writes text in the place of what was there, or after it where there is no place.
    ///
    /// # Errors
    /// The output takes nothing any more.
    pub fn redraw(&mut self, text: &str) -> io::Result<()> {
        let clear = if self.terminal { "\x1b[H\x1b[2J" } else { "" };
        self.write(&format!("{clear}{text}"))
    }
}

fn width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}
