# What a guest does: runs the test programs one after the other, each between two lines that
# begin with "@", and switches itself off. Prints to the second serial line.
exec >/dev/ttyS1 2>&1 </dev/null
stty -F /dev/ttyS1 -onlcr
mount -t tracefs tracefs /sys/kernel/tracing
ip link set lo up
mkdir -p "$REPOSITORY"
mount --bind /run/tests/repository "$REPOSITORY" || echo "the sources cannot be mounted"
run() {
    program=$1
    shift
    echo "@start $program"
    "/run/tests/bin/$program" --test-threads=1 --show-output --include-ignored "$@"
    echo "@end $program $?"
}
echo "@kernel $(uname -r)"
