//! Forms that change something, for admins only (rule W9); plain HTML, so they need no script.
//!
//! Purpose: restart, log level, end of the node. A reader without the right gets no form instead of
//! one that is refused. Must not know: what the requests do.

use logtree::{Dn, Level};
use maud::{Markup, html};

use super::Known;
use crate::peer::Role;

/// Restart and log level of one service.
pub(crate) fn service(known: &Known<'_>, dn: &Dn) -> Markup {
    html! {
        @if known.role == Role::Admin {
            section aria-labelledby="h-do" {
                h2 #h-do { "Change" }
                div.card.filter {
                    @if dn.parent().is_some() {
                        form action={ "/restart/" (dn) } method="post" {
                            button { "Restart it and its unit" }
                        }
                    }
                    form.filter action="/level" method="post" {
                        input type="hidden" name="dn" value=(dn);
                        div.f {
                            label for="f-level" { "Log level for 15 min" }
                            select #f-level name="level" {
                                @for level in Level::ALL {
                                    option selected[level == Level::Info] { (level) }
                                }
                            }
                        }
                        div.f { button { "Set" } }
                    }
                }
            }
        }
    }
}

/// The end of the node.
pub(crate) fn power(known: &Known<'_>) -> Markup {
    html! {
        @if known.role == Role::Admin {
            section aria-labelledby="h-power" {
                h2 #h-power { "Power" }
                form.card.filter action="/power" method="post" {
                    div.f {
                        label for="f-action" { "What to do" }
                        select #f-action name="action" {
                            option value="reboot" { "Restart the machine" }
                            option value="poweroff" { "Switch it off" }
                        }
                    }
                    div.f.check {
                        label { input name="force" type="checkbox" value="on";
                            " Without stopping services in order" }
                    }
                    div.f { button { "Do it" } }
                }
            }
        }
    }
}
