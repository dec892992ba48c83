# SPDX-License-Identifier: Apache-2.0
# Sourced by setup.sh and musl.sh: an apt of its own, so that what is fetched for these tests leaves the system's lists
# of packages as they are. Its sources are the system's: one file in images, the other in installations.
#
#   private_apt DIRECTORY SED [LINE...]    prints the configuration's name, for APT_CONFIG; SED edits the sources, LINEs
#                                          are more settings
private_apt() {
    local apt=$1 edit=$2 from
    shift 2
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/src"
    : >"$apt/status"
    for from in /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list; do
        [ -s "$from" ] || continue
        sed "$edit" "$from" >"$apt/src/system-$(basename "$from")"
    done
    cat >"$apt/apt.conf" <<CONF
APT::Sandbox::User "root"; APT::Install-Recommends "false";
Dir::State "$apt"; Dir::State::status "$apt/status"; Dir::Cache "$apt/cache";
Dir::Etc::sourcelist "/dev/null"; Dir::Etc::sourceparts "$apt/src";
CONF
    [ $# -eq 0 ] || printf '%s\n' "$@" >>"$apt/apt.conf"
    echo "$apt/apt.conf"
}
