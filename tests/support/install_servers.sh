#!/bin/sh
# Installs from Debian the servers that tests marked `stack` start, the compiler for the trace scanner, and a file
# system with quotas; with the argument "drawing", also a browser. Prints what is missing if it may not install.
set -eu

packages=""
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || packages="$packages postgresql"
command -v prometheus >/dev/null 2>&1 && command -v promtool >/dev/null 2>&1 || packages="$packages prometheus"
command -v amtool >/dev/null 2>&1 && command -v prometheus-alertmanager >/dev/null 2>&1 || packages="$packages prometheus-alertmanager"
command -v tc >/dev/null 2>&1 || packages="$packages iproute2"
command -v systemd-analyze >/dev/null 2>&1 || packages="$packages systemd"
command -v openssl >/dev/null 2>&1 || packages="$packages openssl"
command -v slurmctld >/dev/null 2>&1 && command -v slurmd >/dev/null 2>&1 || packages="$packages slurm-wlm"
command -v munged >/dev/null 2>&1 || packages="$packages munge"
command -v faketime >/dev/null 2>&1 || packages="$packages faketime"
command -v mkfs.btrfs >/dev/null 2>&1 || packages="$packages btrfs-progs"
command -v g++ >/dev/null 2>&1 || packages="$packages g++"
# A browser is large, and only tests that draw pages need one.
if [ "${1:-}" = drawing ]; then
    command -v chromium >/dev/null 2>&1 || packages="$packages chromium"
    command -v npm >/dev/null 2>&1 || packages="$packages nodejs npm"
fi
# Only for its schema of compose.yaml; it starts no container.
[ -e /usr/lib/python3/dist-packages/compose/config/compose_spec.json ] || packages="$packages docker-compose"
# Not in every release of Debian.
command -v victoria-metrics >/dev/null 2>&1 || ! apt-cache show victoria-metrics >/dev/null 2>&1 || packages="$packages victoria-metrics"
[ -z "$packages" ] && exit 0

if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" -ne 0 ]; then
    echo "not installed, because this needs apt-get and root:$packages; the tests that need them will skip"
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
# A package must not start its own server: the tests start servers on free ports.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
fi
apt-get update -qq
# shellcheck disable=SC2086
apt-get install -y -qq --no-install-recommends $packages >/dev/null
