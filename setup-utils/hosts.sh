# shellcheck shell=bash
# Checks the hosts that run.sh is given; sourced by it. Launchers answer a wrong character with pages of text, or hang.
# Both functions set $entries, the hosts as in ip1:8, and $slots, the number of ranks that they have slots for.

# A name or address, in the characters of both; never the beginning of an option.
host_pattern='([A-Za-z0-9_][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])'

# check_hosts VALUE: whether it is a list as in ip1:8,ip2:8, where ":1" can be left out.
check_hosts() {
    local rest=${1:0:10000} host
    slots=0 entries=()
    # One by one: matching the whole list with one pattern can take the shell minutes.
    while host=${rest%%,*}; [[ ${#host} -le 260 && $host =~ ^$host_pattern(:([1-9][0-9]?[0-9]?[0-9]?))?$ ]]; do
        slots=$((slots + ${BASH_REMATCH[3]:-1}))
        entries+=("${BASH_REMATCH[1]}:${BASH_REMATCH[3]:-1}")
        if [[ $rest == "$host" ]]; then return; fi
        rest=${rest#*,}
    done
    echo "error: HOSTS='${1:0:80}' is not a list of hosts with their ranks; write it as ip1:8,ip2:8" >&2
    return 2
}

# check_hostfile FILE: whether each line is a host in Open MPI's form, "ip1 slots=8", or a comment.
check_hostfile() {
    local line host slots_here number=0
    local option='([[:space:]]+(slots|max_slots|max-slots)[[:space:]]*=[[:space:]]*([1-9][0-9]?[0-9]?[0-9]?))'
    slots=0 entries=()
    if [[ ! -f $1 || ! -r $1 ]]; then
        echo "error: HOSTFILE='${1:0:80}' is not a readable file; give one with a line as in: ip1 slots=8" >&2
        return 2
    fi
    # A longer line, or more lines, mean that the file is something else.
    while IFS= read -r -n 300 line || [[ -n $line ]]; do
        number=$((number + 1))
        line=${line%%#*}
        line=${line%$'\r'}
        [[ $line =~ ^[[:space:]]*$ ]] && continue
        if [[ $number -gt 10000 || ! $line =~ ^[[:space:]]*$host_pattern$option?$option?[[:space:]]*$ ]]; then
            printf "error: %s, line %d: '%.80s' is not a host; write it as in \"ip1 slots=8\"\n" "$1" "$number" "$line" >&2
            return 2
        fi
        host=${BASH_REMATCH[1]}
        [[ $line =~ [[:space:]]slots[[:space:]]*=[[:space:]]*([0-9]+) ]] && slots_here=${BASH_REMATCH[1]} || slots_here=1
        slots=$((slots + slots_here))
        entries+=("$host:$slots_here")
    done <"$1"
    [[ $slots -gt 0 ]] && return
    echo "error: HOSTFILE='${1:0:80}' has no host; add lines as in: ip1 slots=8" >&2
    return 2
}

# is_this_host HOST: whether mpirun starts its ranks without ssh.
is_this_host() {
    local address
    for address in "$1" $(getent ahosts "$1" | cut -d ' ' -f 1); do
        case " localhost $(hostname) $(hostname -I) " in *" $address "*) return 0 ;; esac
        if [[ $address == 127.* || $address == ::1 ]]; then return 0; fi
    done
    return 1
}

# leave_out_dead: removes hosts from $entries that do not answer ssh, and sets $slots again. If no host answers, the reason
# is not a host's, and all of them stay.
leave_out_dead() {
    local entry host processes=() alive=() dead=() slots_alive=0
    for entry in "${entries[@]}"; do
        host=${entry%:*} host=${host#[} host=${host%]}
        is_this_host "$host" || timeout 30 ssh -o BatchMode=yes -o ConnectTimeout=10 "$host" true </dev/null &>/dev/null &
        processes+=($!)
    done
    for entry in "${entries[@]}"; do
        if wait "${processes[0]}"; then
            alive+=("$entry") slots_alive=$((slots_alive + ${entry##*:}))
        else
            dead+=("${entry%:*}")
        fi
        processes=("${processes[@]:1}")
    done
    if ((${#alive[@]} == 0 || ${#dead[@]} == 0)); then return; fi
    echo "run.sh: ${dead[*]} cannot be reached by ssh; the run goes on without, on ${alive[*]}" >&2
    entries=("${alive[@]}") slots=$slots_alive
}
