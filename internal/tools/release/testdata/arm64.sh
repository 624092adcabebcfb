#!/bin/sh
# Runs a job with the program for arm64 and with helper processes for arm64. The kernel executes them by qemu in the namespaces of
# this script only.
#
#   arm64.sh QEMU PROGRAM JOB
set -eu
mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc || {
	echo "no binfmt_misc for a user namespace, which Linux has since 6.7"
	exit 77
}
elf='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
printf %s ":arm64:M::$elf:$mask:$1:F" >/proc/sys/fs/binfmt_misc/register
"$2" version
"$2" run "$3"
