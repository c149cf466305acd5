//! Commands as titles show them: the script first.

/// Returns a command without its interpreter and the folder of its script: `train.py --seconds 600`. So it does behind a
/// dynamic loader that starts the interpreter. The texts stay as they are: the caller cleans them.
pub fn short_command(command: &str) -> String {
    let words: Vec<&str> = command.split(' ').filter(|word| !word.is_empty()).collect();
    let words = loaded(&words).unwrap_or(&words);
    let Some((program, rest)) = words.split_first() else {
        return String::new();
    };
    let program = file_name(program);
    if !is_python(program) {
        return joined(program, rest);
    }
    match script(rest) {
        Some((script, arguments)) => joined(&script, arguments),
        None => joined(program, rest),
    }
}

/// Returns the program and its arguments behind a dynamic loader and its options; `None` if the command is not of that
/// form.
fn loaded<'a>(words: &'a [&'a str]) -> Option<&'a [&'a str]> {
    let (loader, mut rest) = words.split_first()?;
    if !is_loader(file_name(loader)) {
        return None;
    }
    while let Some(option) = rest.first()?.strip_prefix("--") {
        rest = &rest[1..];
        if option.is_empty() {
            break;
        }
        if LOADER_OPTIONS_WITH_VALUE.contains(&option) {
            rest = rest.get(1..)?;
        }
    }
    (!rest.is_empty()).then_some(rest)
}

/// Options of dynamic loaders whose value is the next word (elf/rtld.c@glibc-2.42, ldso/dynlink.c@v1.2.5 of musl).
const LOADER_OPTIONS_WITH_VALUE: [&str; 7] = [
    "argv0",
    "audit",
    "glibc-hwcaps-mask",
    "glibc-hwcaps-prepend",
    "inhibit-rpath",
    "library-path",
    "preload",
];

/// Returns true for `ld-linux-x86-64.so.2`, `ld-2.31.so`, `ld-musl-x86_64.so.1`.
fn is_loader(program: &str) -> bool {
    program.starts_with("ld-") && program.contains(".so")
}

fn joined(first: &str, rest: &[&str]) -> String {
    let words = std::iter::once(first).chain(rest.iter().copied());
    words.collect::<Vec<_>>().join(" ")
}

/// Returns the last part of a path; the whole word if it is none.
fn file_name(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or_default();
    if name.is_empty() { path } else { name }
}

/// Returns true for `python`, `python3.12`, `python3.13t`, `pypy3`.
fn is_python(program: &str) -> bool {
    let version = program
        .strip_prefix("python")
        .or(program.strip_prefix("pypy"));
    version.is_some_and(|version| {
        let is_version = |letter: char| letter.is_ascii_digit() || ".dt".contains(letter);
        version.chars().all(is_version)
    })
}

/// Returns the script among the arguments of an interpreter, and its own arguments. Also `-m` and its module, or `-c`
/// and its code; `None` if the interpreter reads standard input.
fn script<'a>(words: &'a [&'a str]) -> Option<(String, &'a [&'a str])> {
    let mut at = 0;
    while let Some(word) = words.get(at) {
        at += 1;
        let rest = &words[at..];
        let Some(letters) = word.strip_prefix('-') else {
            return Some((file_name(word).to_owned(), rest));
        };
        // The options that take a value (Python/getopt.c@v3.14.0).
        match letters.find(['c', 'm', 'W', 'X']) {
            _ if letters.is_empty() => return None,
            _ if letters == "-check-hash-based-pycs" => at += 1,
            _ if letters.starts_with('-') => {}
            Some(place) if letters[place..].starts_with(['c', 'm']) => {
                return Some((format!("-{}", &letters[place..]), rest));
            }
            Some(place) if place + 1 == letters.len() => at += 1,
            Some(_) | None => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_comes_first() {
        for (command, short) in [
            (
                "python /home/ada/gpt/train.py --seconds 600",
                "train.py --seconds 600",
            ),
            (
                "/opt/venv/bin/python3.12 -u -X dev -W ignore train.py a",
                "train.py a",
            ),
            ("python3.13t -Xdev -uB ./train.py", "train.py"),
            (
                "python -m torch.distributed.run --nproc-per-node 4 train.py",
                "-m torch.distributed.run --nproc-per-node 4 train.py",
            ),
            ("python -um train", "-m train"),
            (
                "python -c import torch; torch.zeros(3)",
                "-c import torch; torch.zeros(3)",
            ),
            (
                "/usr/bin/python3 /opt/venv/bin/torchrun train.py",
                "torchrun train.py",
            ),
            ("/opt/server/bin/serve --port 80", "serve --port 80"),
            ("python -m serve --port 80", "-m serve --port 80"),
            (
                "/lib64/ld-linux-x86-64.so.2 --library-path /sid/lib:/sid/usr/lib --argv0 python \
                 /sid/usr/bin/python3.14 -u train.py --seconds 600",
                "train.py --seconds 600",
            ),
            (
                "/lib/ld-musl-x86_64.so.1 --preload=/a.so -- /usr/bin/python3 -m serve",
                "-m serve",
            ),
            ("/lib64/ld-2.31.so /opt/bin/serve a", "serve a"),
        ] {
            assert_eq!(short_command(command), short, "{command}");
        }
    }

    #[test]
    fn a_command_without_a_script_stays() {
        for command in [
            "",
            "python",
            "python -",
            "pythonic x",
            "[kthread]",
            "ld-linux-x86-64.so.2 --list",
            "ld-linux-x86-64.so.2 --argv0",
            "ld-linux-x86-64.so.2 --argv0 python",
        ] {
            assert_eq!(short_command(command), command);
        }
        assert_eq!(short_command("/usr/bin/python -i"), "python -i");
        assert_eq!(short_command("/"), "/");
    }
}
