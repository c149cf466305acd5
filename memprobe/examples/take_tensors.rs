//! Prints the tensors of a process. For trying things by hand.
fn main() {
    let pid = std::env::args().nth(1).unwrap().parse().unwrap();
    let manner = if std::env::args().any(|a| a == "--nonblocking") {
        memprobe::inspect::tensors::Manner::Running
    } else {
        memprobe::inspect::tensors::Manner::Paused
    };
    let start = std::time::Instant::now();
    let snapshot = match memprobe::inspect::tensors::take(memprobe::event::Tgid(pid), manner) {
        Ok(snapshot) => snapshot,
        Err(why) => return println!("{why}"),
    };
    println!(
        "{:?} objects {} in {:?} unread {:?}",
        snapshot.consistency,
        snapshot.objects,
        start.elapsed(),
        snapshot.unread
    );
    println!(
        "{:?} {} blocks {} storages {} tensors",
        snapshot.devices,
        snapshot.blocks.len(),
        snapshot.storages.len(),
        snapshot.tensors.len()
    );
    for t in &snapshot.tensors {
        let names: Vec<_> = t.names.iter().map(|n| n.text.to_string()).collect();
        println!(
            "{:15} {:?} {} {} rg={} fn={:?} grad_of={:?} saved={:?} module={:?} class={:?} {:?}",
            t.kind.as_str(),
            t.shape,
            t.dtype,
            t.device,
            t.requires_grad,
            t.grad_fn,
            t.gradient_of,
            t.saved_by,
            t.module,
            t.class,
            names
        );
    }
}
