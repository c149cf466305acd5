//! A headless browser, driven through chromedriver by the WebDriver protocol.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Keys of the protocol.
pub const ENTER: &str = "\u{e007}";
pub const RIGHT: &str = "\u{e014}";

/// Longest wait for a condition of a page.
const PATIENCE: Duration = Duration::from_secs(30);

/// An open window. Both programs end with it.
pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
    _profile: TempDir,
}

impl Browser {
    /// Opens a window. Without chromedriver, prints why the test is skipped.
    pub fn open() -> Option<Self> {
        let driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut driver) = driver else {
            println!("skipped: chromedriver is not installed (Debian: chromium chromium-driver)");
            return None;
        };
        let mut output = BufReader::new(driver.stdout.take().expect("a pipe"));
        let port = loop {
            let mut line = String::new();
            let read = output.read_line(&mut line).expect("chromedriver starts");
            assert!(read > 0, "chromedriver ended before it was ready");
            if let Some((_, port)) = line.split_once("started successfully on port ") {
                let port = port.trim().trim_end_matches('.');
                break port.parse().expect("a port");
            }
        };
        // It stops if nobody reads what it prints.
        std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
        let profile = tempfile::tempdir().expect("a folder");
        let mut browser = Self {
            driver,
            port,
            session: String::new(),
            _profile: profile,
        };
        browser.begin_session();
        Some(browser)
    }

    fn begin_session(&mut self) {
        let profile = format!("--user-data-dir={}", self._profile.path().display());
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--window-size=1300,1600",
            &profile,
        ];
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let session = self.ask("POST", "/session", Some(&wanted));
        let id = session["sessionId"].as_str();
        self.session = id.expect("a session").to_owned();
    }

    /// Opens an address.
    pub fn go_to(&self, address: &str) {
        self.command("url", &json!({ "url": address }));
    }

    /// Opens a file, and waits until an element is shown.
    pub fn visit(&self, file: &Path, element: &str) {
        self.go_to(&format!("file://{}", file.display()));
        self.wait_for(element, "is shown", |it| {
            it.script(&format!(
                "const found = document.querySelector('{element}'); return Boolean(found && found.offsetHeight)"
            )) == true
        });
    }

    /// Waits until a condition holds.
    pub fn wait_for(&self, subject: &str, words: &str, holds: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            assert!(start.elapsed() < PATIENCE, "{subject}: never {words}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Runs a function of the page; returns its result.
    pub fn script(&self, script: &str) -> Value {
        self.command("execute/sync", &json!({"script": script, "args": []}))
    }

    /// Runs a function of the page that calls `done` with its result.
    pub fn script_with_answer(&self, script: &str) -> Value {
        let script = format!("const done = arguments[0]; {script}");
        self.command("execute/async", &json!({"script": script, "args": []}))
    }

    /// Visible text of the first element.
    pub fn text(&self, selector: &str) -> String {
        let element = self.element(selector);
        let path = format!("/session/{}/element/{element}/text", self.session);
        let text = self.ask("GET", &path, None);
        text.as_str().expect("a text").to_owned()
    }

    pub fn click(&self, selector: &str) {
        let element = self.element(selector);
        self.command(&format!("element/{element}/click"), &json!({}));
    }

    /// Presses keys in an element.
    pub fn press(&self, selector: &str, keys: &str) {
        let element = self.element(selector);
        self.command(
            &format!("element/{element}/value"),
            &json!({ "text": keys }),
        );
    }

    /// Messages of the page's console that are no information: errors, refused connections.
    pub fn complaints(&self) -> Vec<String> {
        let log = self.command("se/log", &json!({"type": "browser"}));
        let entries = log.as_array().expect("a list").iter();
        let grave = entries.filter(|entry| entry["level"] == "SEVERE");
        grave.map(|entry| entry["message"].to_string()).collect()
    }

    fn element(&self, selector: &str) -> String {
        let using = json!({"using": "css selector", "value": selector});
        let found = self.command("element", &using);
        let id = found.as_object().and_then(|it| it.values().next());
        let id = id.and_then(Value::as_str);
        id.unwrap_or_else(|| panic!("no element {selector}"))
            .to_owned()
    }

    fn command(&self, name: &str, body: &Value) -> Value {
        let path = format!("/session/{}/{name}", self.session);
        self.ask("POST", &path, Some(body))
    }

    /// Sends a request; returns the value of the answer.
    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let body = body.map_or(String::new(), Value::to_string);
        let mut stream =
            TcpStream::connect(("127.0.0.1", self.port)).expect("chromedriver listens");
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            self.port,
            body.len()
        )
        .expect("sent");
        let mut answer = Vec::new();
        let mut reader = BufReader::new(stream);
        let mut length = None;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).expect("an answer");
            let lower = line.trim().to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse::<u64>().ok();
            }
            if lower.is_empty() {
                break;
            }
        }
        let length = length.expect("a length");
        reader
            .take(length)
            .read_to_end(&mut answer)
            .expect("an answer");
        let mut answer: Value = serde_json::from_slice(&answer).expect("JSON");
        let value = answer["value"].take();
        assert!(
            value["error"].is_null() || value["message"].is_null(),
            "{method} {path}: {value}"
        );
        value
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() && !std::thread::panicking() {
            self.ask("DELETE", &format!("/session/{}", self.session), None);
        }
        // It ends its browsers.
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) {
            let _ = stream.write_all(
                b"GET /shutdown HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
            );
            let _ = stream.read(&mut [0; 64]);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
