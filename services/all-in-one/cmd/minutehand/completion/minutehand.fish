# Completion of minutehand for fish. Once: minutehand completion fish > ~/.config/fish/completions/minutehand.fish
function __minutehand_complete
    set -l before (commandline -opc)
    set -l last (commandline -ct)
    set -l found ($before[1] __complete $before[2..-1] "$last" 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path "$last"
    end
end
complete -c minutehand -f -a '(__minutehand_complete)'
