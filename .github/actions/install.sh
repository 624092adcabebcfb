#!/usr/bin/env bash
# Installs a release of nomad-lite for the steps of a workflow that follow, unless PATH has the program.
#
#   install.sh VERSION
#
# NOMAD_LITE_URL replaces the URL of the directory with the files of the release.
set -euo pipefail

if command -v nomad-lite >/dev/null; then
	nomad-lite version
	exit
fi
version=${1#v}
if [[ -z $version ]]; then
	echo "install.sh: PATH has no nomad-lite: set the input version of the action, such as 0.1.0" >&2
	exit 1
fi
url=${NOMAD_LITE_URL:-https://github.com/nomad-lite/nomad-lite/releases/download/v$version}
script=$RUNNER_TEMP/nomad-lite-install.sh prefix=$RUNNER_TEMP/nomad-lite
curl -fsSL -o "$script" "$url/install.sh"
NOMAD_LITE_PROGRAM_ONLY=1 sh "$script" -v "$version" -p "$prefix"
echo "$prefix/bin" >>"$GITHUB_PATH"
