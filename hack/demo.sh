#!/bin/bash
# demo.sh: run bin/demo against bin/csi-local-lvm on a volume group made for it.
#
#   demo.sh           in a throwaway machine
#   DEMO=here demo.sh on this machine: root, device-mapper and LVM are needed; the volume group lies on two loop files
#                     in a temporary folder, and is removed at the end. Nothing else of this machine is touched.
#
# The demo is called as: demo --driver FILE --volume-group NAME
set -euo pipefail
root=$(cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/.." && pwd)

# demo_on DEVICE... makes the volume group on these devices and runs the demo.
demo_on() {
  local code=0 group=csi-local-lvm-demo
  vgcreate -q --yes "$group" "$@" >/dev/null
  "$root/bin/demo" --driver "$root/bin/csi-local-lvm" --volume-group "$group" || code=$?
  vgremove -q --yes --force "$group" >/dev/null
  return "$code"
}

here() {
  [[ $(id -u) -eq 0 ]] || { echo "demo: DEMO=here needs root" >&2; exit 1; }
  dmsetup version >/dev/null 2>&1 ||
    { echo "demo: this machine has no usable device-mapper; run without DEMO=here" >&2; exit 1; }
  if vgs csi-local-lvm-demo >/dev/null 2>&1; then
    echo "demo: the volume group csi-local-lvm-demo is there already" >&2; exit 1
  fi
  folder=$(mktemp -d) loops=()
  trap release EXIT
  local i
  for i in 0 1; do
    truncate -s 3G "$folder/disk$i"
    loops+=("$(losetup --find --show "$folder/disk$i")")
  done
  demo_on "${loops[@]}"
}

# shellcheck disable=SC2317 # a trap calls it
release() {
  local loop
  for loop in "${loops[@]}"; do losetup -d "$loop"; done
  rm "$folder"/disk* && rmdir "$folder"
}

case ${1:-${DEMO:-vm}} in
  vm) exec "$root/hack/vm-exec" -d 4G -d 4G "$root/hack/demo.sh" in-machine ;;
  in-machine) demo_on /dev/vda /dev/vdb ;;
  here) here ;;
  *) echo "demo: DEMO is vm or here" >&2; exit 1 ;;
esac
