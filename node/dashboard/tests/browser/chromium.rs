//! Drives a headless Chromium over its debugging pipe.
//!
//! Purpose: load a page, look, evaluate; nothing more. The browser ends when its pipe closes and
//! is killed by its pid if it does not.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Longest wait for something to become true in a page, in milliseconds.
const PATIENCE_MS: u32 = 20_000;

/// One browser with one tab.
pub(crate) struct Browser {
    child: Child,
    to: File,
    from: BufReader<File>,
    session: Option<String>,
    next_id: u64,
    _dir: TempDir,
}

/// How a page is looked at.
#[derive(Clone, Copy)]
pub(crate) struct View {
    pub(crate) width: u32,
    pub(crate) dark: bool,
    pub(crate) script: bool,
}

impl Browser {
    /// Starts one; `None` if Chromium is not installed.
    pub(crate) fn start() -> Option<Browser> {
        let program = ["/usr/bin/chromium", "/usr/bin/chromium-browser"]
            .into_iter()
            .find(|p| Path::new(p).exists())?;
        let dir = tempfile::tempdir().unwrap();
        let (to, from) = (dir.path().join("to"), dir.path().join("from"));
        let made = Command::new("mkfifo").arg(&to).arg(&from).status().unwrap();
        assert!(made.success());
        let child = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<\"$TO\" 4>\"$FROM\"", "sh", program])
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"])
            .args(["--no-first-run", "--disable-background-networking", "--disable-sync"])
            .args(["--disable-component-update", "--remote-debugging-pipe", "about:blank"])
            .arg(format!("--user-data-dir={}", dir.path().join("profile").display()))
            .envs([("TO", &to), ("FROM", &from)])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The shell opens them in this order too; each open waits for the other side.
        let to = OpenOptions::new().write(true).open(to).unwrap();
        let from = BufReader::new(File::open(from).unwrap());
        let mut browser = Browser { child, to, from, session: None, next_id: 0, _dir: dir };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", attach);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        browser.call("Page.enable", json!({}));
        browser.show(View { width: 1280, dark: false, script: true });
        Some(browser)
    }

    /// Sets width, theme and scripting for the pages to come.
    pub(crate) fn show(&mut self, view: View) {
        let size = json!({
            "width": view.width, "height": 900, "deviceScaleFactor": 1, "mobile": view.width < 500,
        });
        self.call("Emulation.setDeviceMetricsOverride", size);
        let theme = if view.dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": theme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
        let off = json!({ "value": !view.script });
        self.call("Emulation.setScriptExecutionDisabled", off);
    }

    /// Loads a page and waits until it has loaded.
    pub(crate) fn go(&mut self, url: &str) {
        self.send("Page.navigate", json!({ "url": url }));
        while self.receive()["method"] != "Page.loadEventFired" {}
    }

    /// The value of an expression.
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        self.try_eval(expression).unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    /// As [`Browser::eval`]; an error if the page went away meanwhile.
    fn try_eval(&mut self, expression: &str) -> Result<Value, Value> {
        let ask = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.answer("Runtime.evaluate", ask)?;
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        Ok(answer["result"]["value"].clone())
    }

    /// Waits until an expression is true.
    pub(crate) fn wait(&mut self, condition: &str) {
        let poll = format!(
            "new Promise((done) => {{
               const begin = Date.now();
               const look = () => {{
                 if ({condition}) done(true);
                 else if (Date.now() - begin > {PATIENCE_MS}) done(false);
                 else setTimeout(look, 20);
               }};
               look();
             }})"
        );
        // What the test did may still be leading to another page, where the question is asked again.
        let gone = |e: &Value| e["message"].as_str().is_some_and(|m| m.contains("navigated"));
        let held = loop {
            match self.try_eval(&poll) {
                Err(error) if gone(&error) => {}
                held => break held,
            }
        };
        assert_eq!(held, Ok(Value::Bool(true)), "never true: {condition}");
    }

    /// The text of the first element that a selector finds.
    pub(crate) fn text(&mut self, selector: &str) -> String {
        let value = self.eval(&format!("document.querySelector('{selector}').textContent"));
        value.as_str().unwrap().to_owned()
    }

    /// What has the focus after each of `n` presses of the tab key: an id as `#id`, else a text.
    pub(crate) fn tab_stops(&mut self, n: usize) -> Vec<String> {
        let focused = "(() => { const e = document.activeElement; \
                       return e.id ? '#' + e.id : e.textContent.trim(); })()";
        let mut stops = Vec::new();
        for _ in 0..n {
            self.key("Tab", None);
            stops.push(self.eval(focused).as_str().unwrap().to_owned());
        }
        stops
    }

    /// Types a text, then presses a key.
    pub(crate) fn press(&mut self, text: &str, key: Option<&str>) {
        self.call("Input.insertText", json!({ "text": text }));
        if let Some(key) = key {
            self.key(key, Some("\r"));
        }
    }

    fn key(&mut self, key: &str, text: Option<&str>) {
        let code = if key == "Tab" { 9 } else { 13 };
        for kind in ["keyDown", "keyUp"] {
            let mut event =
                json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code });
            if let (Some(text), "keyDown") = (text, kind) {
                event["text"] = text.into();
            }
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// The whole page as a picture (PNG).
    pub(crate) fn picture(&mut self) -> Vec<u8> {
        let whole = json!({ "format": "png", "captureBeyondViewport": true });
        let answer = self.call("Page.captureScreenshot", whole);
        BASE64_STANDARD.decode(answer["data"].as_str().unwrap()).unwrap()
    }

    /// The page as it is now, also where scripts are off.
    pub(crate) fn html(&mut self) -> String {
        let document = self.call("DOM.getDocument", json!({ "depth": 0 }));
        let node = json!({ "nodeId": document["root"]["nodeId"] });
        let html = self.call("DOM.getOuterHTML", node);
        html["outerHTML"].as_str().unwrap().to_owned()
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.answer(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// What a method returns, or the browser's error.
    fn answer(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let id = self.send(method, params);
        loop {
            let mut message = self.receive();
            if message["id"] == id {
                return match message.get_mut("error") {
                    Some(error) => Err(error.take()),
                    None => Ok(message["result"].take()),
                };
            }
        }
    }

    fn send(&mut self, method: &str, params: Value) -> u64 {
        self.next_id += 1;
        let mut message = json!({ "id": self.next_id, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).unwrap();
        self.next_id
    }

    fn receive(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.from.read_until(0, &mut bytes).unwrap();
        assert_eq!(bytes.pop(), Some(0), "the browser has ended");
        serde_json::from_slice(&bytes).unwrap()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
