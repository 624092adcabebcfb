#!/bin/sh
# mkbus.sh DIR makes an example bus with two thermometers and a relay.
set -eu
node() { mkdir -p "$1"; echo "$3" >"$1/serial"; echo ok >"$1/state"; echo "$4" >"$1/value"; echo "$2" >"$1/model"; }
node "$1/thermo/attic" T100 A-1 21.5
node "$1/thermo/cellar" T200 A-2 12.25
node "$1/relay/pump" R7 B-1 0
chmod a+w "$1/relay/pump/value" # a task of exec is not root
