//! Pages for requests that are not served.
//!
//! Purpose: a person who lands here learns what is wrong and what to do next. They show nothing
//! of the node, because the reader may not have been let in.

use maud::{DOCTYPE, Markup, html};

use super::{brand, head};
use crate::problem::Problem;
use crate::text::visible;

/// The page of a refusal.
pub(crate) fn refusal_page(problem: &Problem) -> Markup {
    let reason = problem.status.canonical_reason().unwrap_or("Refused");
    bare(
        reason,
        &html! {
            h1 { (problem.status.as_u16()) " " (reason) }
            p { (sentence(&problem.message)) }
            @if !problem.hint.is_empty() { p { (visible(&problem.hint)) } }
            p { a href="/" { "Go to the overview" } }
        },
    )
}

/// The page that asks for the token.
pub(crate) fn login_page(problem: &Problem) -> Markup {
    bare(
        "Token needed",
        &html! {
            h1 { "This dashboard needs its token" }
            p { (sentence(&problem.message)) }
            p { "Open the link that the node printed on its console, or enter its token here." }
            form action="/" method="get" {
                label for="token" { "Token" }
                input #token name="token" type="password" autocomplete="current-password" required;
                button { "Open" }
            }
        },
    )
}

fn sentence(message: &str) -> String {
    let shown = visible(message);
    let mut chars = shown.chars();
    let first = chars.next().map(|c| c.to_ascii_uppercase());
    first.into_iter().chain(chars).chain(['.']).collect()
}

fn bare(title: &str, main: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            (head(title, None, None))
            body {
                header.top { (brand()) }
                main #main.narrow { div.card { (main) } }
            }
        }
    }
}
