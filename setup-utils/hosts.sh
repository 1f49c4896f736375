# shellcheck shell=bash
# What run.sh takes as hosts; sourced by it. Launchers answer a wrong character with pages, or not at all.
# Both functions leave the number of ranks that the hosts have room for in $room.

# A name or address, in the characters of both; never the beginning of an option.
host_pattern='([A-Za-z0-9_][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])'

# check_hosts VALUE: whether it is a list as in ip1:8,ip2:8, where ":1" can be left out.
check_hosts() {
    local rest=${1:0:10000} host
    room=0
    # One by one: a pattern for the whole list takes the shell minutes on some wrong ones.
    while host=${rest%%,*}; [[ ${#host} -le 260 && $host =~ ^$host_pattern(:([1-9][0-9]?[0-9]?[0-9]?))?$ ]]; do
        room=$((room + ${BASH_REMATCH[3]:-1}))
        if [[ $rest == "$host" ]]; then return; fi
        rest=${rest#*,}
    done
    echo "error: HOSTS='${1:0:80}' is no list of hosts and their ranks, as in ip1:8,ip2:8" >&2
    return 2
}

# check_hostfile FILE: whether each line is a host in Open MPI's form, "ip1 slots=8", or a comment.
check_hostfile() {
    local line slots_here number=0
    local slots='([[:space:]]+(slots|max_slots|max-slots)[[:space:]]*=[[:space:]]*([1-9][0-9]?[0-9]?[0-9]?))'
    room=0
    if [[ ! -f $1 || ! -r $1 ]]; then
        echo "error: HOSTFILE='${1:0:80}' is no file that can be read" >&2
        return 2
    fi
    # Longer lines, and more of them, mean that it is another file.
    while IFS= read -r -n 300 line || [[ -n $line ]]; do
        number=$((number + 1))
        line=${line%%#*}
        line=${line%$'\r'}
        [[ $line =~ ^[[:space:]]*$ ]] && continue
        if [[ $number -gt 10000 || ! $line =~ ^[[:space:]]*$host_pattern$slots?$slots?[[:space:]]*$ ]]; then
            printf "error: %s, line %d: '%.80s' is no host as in \"ip1 slots=8\"\n" "$1" "$number" "$line" >&2
            return 2
        fi
        [[ $line =~ [[:space:]]slots[[:space:]]*=[[:space:]]*([0-9]+) ]] && slots_here=${BASH_REMATCH[1]} || slots_here=1
        room=$((room + slots_here))
    done <"$1"
    [[ $room -gt 0 ]] && return
    echo "error: HOSTFILE='${1:0:80}' names no host" >&2
    return 2
}
