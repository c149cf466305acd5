#!/bin/busybox sh
# The first program of a guest: loads the drivers, joins the two disks, and hands over to run.sh.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in $(cat /modules/order); do
    insmod "/modules/$module" || echo "memprobe-guest: $module is refused"
done
fail() {
    echo "memprobe-guest: $1" >/dev/ttyS1
    sleep 1
    poweroff -f
}
# A disk may take a moment to appear, and which comes first is not sure.
mount_disk() {
    for _ in $(seq 100); do
        disk=$(findfs "LABEL=$1" 2>/dev/null) && break
        sleep 0.1
    done
    mount -t ext4 -o ro "$disk" "$2" || fail "the disk $1 cannot be mounted"
}
mount_disk system /root
mount -t tmpfs tmp /root/tmp
mount -t tmpfs run /root/run
mkdir -p /root/run/tests
mount_disk tests /root/run/tests
for folder in /proc /sys /dev; do
    mount --move "$folder" "/root$folder"
done
exec switch_root /root /bin/busybox sh /run/tests/run.sh
