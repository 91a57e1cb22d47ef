#!/bin/bash
# Records what LVM prints and writes, as the tests of this folder read it: run it as root on a machine with six blank
# disks /dev/vda (512 MiB), /dev/vdb, /dev/vdc, /dev/vdd, /dev/vde, /dev/vdf, and with an empty folder to write to.
#   record.sh FOLDER
# Made with LVM 2.03.16 (Debian 12) and Linux 6.1.
set -u
out=$1; mkdir -p "$out"
config='backup{backup=0 archive=0} activation{udev_sync=0 udev_rules=0 verify_udev_operations=0 monitoring=0} devices{scan_lvs=0} global{notify_dbus=0} report{mark_hidden_devices=0}'
export LVM_SUPPRESS_FD_WARNINGS=1 DM_DISABLE_UDEV=1 LC_ALL=C
lvm() { local verb=$1; shift; command lvm "$verb" --config "$config" "$@"; }
quiet() { lvm "$@" >/dev/null 2>&1 || echo "FAILED: $*"; }
report() { # NAME: the report, and the text of each group from its first disk
  lvm fullreport --reportformat json --units b --nosuffix \
    --configreport vg -o vg_name,vg_uuid,vg_extent_size,vg_size,vg_free,vg_missing_pv_count,vg_seqno \
    --configreport pv -o pv_name,pv_uuid,pv_size,pv_free,pv_missing,pv_allocatable \
    --configreport lv -o lv_name,lv_uuid,lv_size,lv_tags,lv_layout,lv_role,pool_lv \
    --configreport pvseg -S 'vg_name=""' --configreport seg -o lv_uuid,thin_id -S segtype=thin \
    >"$out/$1.json" 2>"$out/$1.stderr"
  [[ -s $out/$1.stderr ]] || rm "$out/$1.stderr"
}
text() { head -c 2101248 "$2" >"$out/$1.head"; } # NAME DISK: label and metadata area; to be packed with gzip -9n
fails() { # NAME COMMAND...: standard error of a command that must fail
  local name=$1; shift
  lvm "$@" >/dev/null 2>"$out/$name.stderr" && echo "did not fail: $*"
}
ours='--addtag csi.owner=local-lvm.csi.internal --addtag csi.kind=persistent --addtag csi.name=a:20b --addtag csi.spec=type=linear&fs=ext4'
make="-y -W y -Z y"
report none
quiet vgcreate empty /dev/vdf
report empty
text empty /dev/vdf
quiet vgcreate data /dev/vda /dev/vdb /dev/vdc /dev/vdd /dev/vde
quiet lvcreate $make $ours -L 8m -n linear data
quiet lvcreate $make -L 80m -n foreign data
quiet lvcreate $make $ours --type striped -i 2 -I 64k -L 8m -n striped data
quiet lvcreate $make $ours --type raid1 -m 1 -L 8m -n raid1 data
quiet lvcreate $make $ours --type raid5 -i 2 -L 8m -n raid5 data
quiet lvcreate $make $ours --type raid6 -i 3 -L 12m -n raid6 data
quiet lvcreate $make $ours --type raid10 -i 2 -m 1 -L 8m -n raid10 data
quiet lvcreate -y --type thin-pool -L 32m -n pool data
quiet lvcreate -y -W y -kn $ours -V 16m --thinpool data/pool -n thin
quiet lvcreate -y -s -n thinsnap data/thin
quiet lvcreate $make $ours -L 8m -n origin data
quiet lvcreate -y -s -L 4m -n thick data/origin
quiet lvcreate -y $ours -an -Zn -Wn -L 4m -n inactive data
quiet lvcreate $make $ours -L 4m -n grown data
quiet lvcreate $make -L 4m -n between data /dev/vda
quiet lvextend -l +2 data/grown /dev/vdb
quiet pvchange -x n /dev/vde
report many 2>&1
text many /dev/vda
fails exists lvcreate $make -L 4m -n linear data
fails insufficient lvcreate $make -L 100g -n big data
fails allocatable lvcreate $make --type raid1 -m 2 -L 200m -n big data
fails stripes lvcreate $make --type striped -i 7 -L 28m -n big data
fails nopool lvcreate -y -kn -V 4m --thinpool data/nopool -n t
fails nogroup lvcreate $make -L 4m -n v nosuch
fails nolv lvremove -y data/nosuch
fails reserved lvcreate $make -L 4m -n x_tdata data
mkdir -p /mnt/x
sleep 60 </dev/mapper/data-linear & sleep 0.5
fails open lvremove -y data/linear
kill $!; wait 2>/dev/null
dmsetup create guest --table "0 8 linear /dev/mapper/data-linear 0"
fails device lvremove -y data/linear
dmsetup remove guest
mkfs.ext4 -q -F /dev/mapper/data-linear; mount -t ext4 /dev/mapper/data-linear /mnt/x
fails mounted lvremove -y data/linear
umount /mnt/x
quiet vgchange -l "$(lvm vgs --noheadings -o lv_count data | tr -d ' ')" data
fails maxlv lvcreate $make -l 1 -n m10 data
# A pool above its threshold: LVM then refuses new thin volumes.
dd if=/dev/urandom of=/dev/mapper/data-thin bs=1M count=16 oflag=direct 2>/dev/null
quiet vgchange -l 0 data
config="$config activation{thin_pool_autoextend_threshold=50}"; quiet lvcreate -y -kn -V 16m --thinpool data/pool -n thin2
dd if=/dev/urandom of=/dev/mapper/data-thin2 bs=1M count=10 oflag=direct 2>/dev/null
fails threshold lvcreate -y -kn -V 4m --thinpool data/pool -n thin3
quiet vgremove -ff -y empty
quiet pvremove /dev/vdf
# Volumes with many long tags fill the metadata area of 1 MiB, and make the text go round its end.
quiet vgcreate -s 64k --metadatasize 1 tiny /dev/vdf
long=; for n in {1..9}; do long="$long --addtag t$n$(printf '%01000d' 0)"; done
i=0; while lvm lvcreate -y -an -Zn -Wn -l1 -n "v$i" $long tiny >/dev/null 2>"$out/metadatafull.stderr"; do i=$((i+1)); done
quiet lvremove -y tiny/v0
text wrapped /dev/vdf
quiet vgremove -ff -y tiny; quiet pvremove /dev/vdf
# Two snapshots of a thin volume, between them writes, discards, and more room; what the pool's metadata say of them.
quiet vgcreate blocks /dev/vdf
quiet lvcreate -y --type thin-pool -c 64k -L 64m -n pool blocks
quiet lvcreate -y -kn -V 40m --thinpool blocks/pool -n thin
put() { dd if=/dev/urandom of=/dev/mapper/blocks-thin bs=64k seek="$1" count="$2" oflag=direct 2>/dev/null; } # CHUNK COUNT
put 0 10; put 22 1; put 20 2; put 639 1; put 300 8; put 296 4
quiet lvcreate -y -s -n snap1 blocks/thin
put 4 1; put 20 3; put 100 1; put 302 2
blkdiscard -o 64k -l 128k /dev/mapper/blocks-thin
quiet lvextend -L 60m blocks/thin
put 700 1
quiet lvcreate -y -s -n snap2 blocks/thin
dmsetup message blocks-pool-tpool 0 reserve_metadata_snap
thin_dump --metadata-snap --dev-id 2 /dev/mapper/blocks-pool_tmeta >"$out/thin_dump.xml"
thin_dump --metadata-snap --dev-id 9 /dev/mapper/blocks-pool_tmeta >"$out/thin_dump.none.xml"
thin_delta --metadata-snap --thin1 2 --thin2 3 /dev/mapper/blocks-pool_tmeta >"$out/thin_delta.xml"
dmsetup message blocks-pool-tpool 0 release_metadata_snap
quiet vgremove -ff -y blocks; quiet pvremove /dev/vdf
# A snapshot is full: LVM warns on standard error and goes on.
dd if=/dev/urandom of=/dev/mapper/data-origin bs=1M count=8 oflag=direct 2>/dev/null
report warning
# A disk is pulled.
bus=$(basename "$(readlink -f /sys/block/vdb/device)")
quiet vgchange -an data
echo "$bus" >/sys/bus/virtio/drivers/virtio_blk/unbind
report partial
text partial /dev/vda
lvm lvs --noheadings -o lv_name -S lv_health_status=partial data >"$out/partial.health" 2>/dev/null
fails partialcreate lvcreate $make -l 1 -n p data
