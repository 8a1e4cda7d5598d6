//! The shape of answers on the host channel. Pure.
use serde_json::{Value, json};

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// A word for programs.
    pub code: &'static str,
    /// A sentence for people.
    pub message: String,
    /// What to do about it.
    pub hint: String,
}

impl Refusal {
    /// Without a hint.
    pub(crate) fn new(code: &'static str, message: impl Into<String>) -> Refusal {
        Refusal { code, message: message.into(), hint: String::new() }
    }

    /// With a hint.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Refusal {
        self.hint = hint.into();
        self
    }
}

/// The answer to one request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    /// Echo of the request's id; null if it had none.
    pub id: Value,
    /// What came of it.
    pub result: Result<Value, Refusal>,
}

impl Answer {
    /// A refusal of a request whose id is not known.
    pub(crate) fn refused(refusal: Refusal) -> Answer {
        Answer { id: Value::Null, result: Err(refusal) }
    }

    /// One line without its newline.
    pub(crate) fn to_line(&self) -> String {
        let value = match &self.result {
            Ok(value) => json!({ "id": self.id, "ok": value }),
            Err(e) => json!({
                "id": self.id,
                "error": { "code": e.code, "message": e.message, "hint": e.hint },
            }),
        };
        value.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b11_an_answer_is_one_line_with_the_id_of_its_request() {
        let ok = Answer { id: json!(7), result: Ok(json!({ "text": "a\nb" })) };
        assert_eq!(ok.to_line(), r#"{"id":7,"ok":{"text":"a\nb"}}"#);
        let no = Answer::refused(Refusal::new("bad", "why").hint("how"));
        assert_eq!(
            no.to_line(),
            r#"{"error":{"code":"bad","hint":"how","message":"why"},"id":null}"#
        );
    }
}
